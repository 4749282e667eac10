// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The policy as the kernel compiles it. */
#include "../../policy/policy.c"
