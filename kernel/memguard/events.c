// SPDX-License-Identifier: GPL-2.0-only
/* The table of memory-traffic events: the same source that user space compiles. */
#include "../../policy/events.c"
