// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* How two counters share one budget, as the kernel compiles it. */
#include "../../policy/split.c"
