/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the policy needs from its environment: fixed-width integers, error
 * numbers and one atomic word. The kernel, user space and the interleaving
 * explorer each supply their own; no other file in policy/ may depend on the
 * environment.
 */
#ifndef MEMWARDEN_POLICY_TYPES_H
#define MEMWARDEN_POLICY_TYPES_H

#ifdef __KERNEL__

#include <linux/atomic.h>
#include <linux/errno.h>
#include <linux/string.h>
#include <linux/types.h>

typedef atomic64_t mw_atomic64;

static inline u64 mw_load(const mw_atomic64 *word)
{
	return (u64)atomic64_read_acquire(word);
}

static inline void mw_store(mw_atomic64 *word, u64 value)
{
	atomic64_set_release(word, (s64)value);
}

/* Full barrier on success; on failure *expected is set to the current value. */
static inline bool mw_cas(mw_atomic64 *word, u64 *expected, u64 desired)
{
	return atomic64_try_cmpxchg(word, (s64 *)expected, (s64)desired);
}

#else /* user space */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef __always_inline
#define __always_inline inline
#endif

typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;

typedef struct {
	u64 value;
} mw_atomic64;

#ifdef MW_EXPLORE
/* Lets another core run before @word is accessed; the explorer supplies it. */
void mw_interleave(const mw_atomic64 *word);
#else
static inline void mw_interleave(const mw_atomic64 *word)
{
	(void)word;
}
#endif

static inline u64 mw_load(const mw_atomic64 *word)
{
	mw_interleave(word);
	return __atomic_load_n(&word->value, __ATOMIC_ACQUIRE);
}

static inline void mw_store(mw_atomic64 *word, u64 value)
{
	mw_interleave(word);
	__atomic_store_n(&word->value, value, __ATOMIC_RELEASE);
}

static inline bool mw_cas(mw_atomic64 *word, u64 *expected, u64 desired)
{
	mw_interleave(word);
	return __atomic_compare_exchange_n(&word->value, expected, desired,
					   false, __ATOMIC_SEQ_CST,
					   __ATOMIC_ACQUIRE);
}

#endif
#endif /* MEMWARDEN_POLICY_TYPES_H */
