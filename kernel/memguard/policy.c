// SPDX-License-Identifier: GPL-2.0-only
/* The regulator's decisions: the same source that user space compiles. */
#include "../../policy/policy.c"
