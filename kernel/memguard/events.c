// SPDX-License-Identifier: GPL-2.0-only
/* What processors count of memory traffic: the same table that user space compiles. */
#include "../../policy/events.c"
