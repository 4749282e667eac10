// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Hands every stop before an atomic access to the explorer, which is Rust. */
#include "policy.h"

static void (*stop)(const mw_atomic64 *word);

void mw_explore_with(void (*explorer)(const mw_atomic64 *word))
{
	__atomic_store_n(&stop, explorer, __ATOMIC_RELEASE);
}

void mw_interleave(const mw_atomic64 *word)
{
	__atomic_load_n(&stop, __ATOMIC_ACQUIRE)(word);
}
