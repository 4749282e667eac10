// SPDX-License-Identifier: GPL-2.0-only
/* How two counters share one budget: the same source that user space compiles. */
#include "../../policy/split.c"
