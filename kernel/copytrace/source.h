/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How copies are traced.
 */
#ifndef COPYTRACE_SOURCE_H
#define COPYTRACE_SOURCE_H

#include <linux/types.h>
#include <memwarden/copytrace.h>

#include "ring.h"

/* Chooses hooks or probes. Returns 0, or an errno after logging a line. */
int copytrace_source_choose(void);
enum copytrace_source copytrace_source_kind(void);
/* Returns COPYTRACE_MERGED or 0. */
u32 copytrace_source_flags(void);
/* Frequency of the counter that records are timed by. */
u64 copytrace_source_ticks_hz(void);

/* Begins recording; counted, so each start needs a stop. Returns 0 or an errno. May sleep. */
int copytrace_source_start(void);
/* The last start's stop ends recording; no copy is being recorded when it returns. */
void copytrace_source_stop(void);

/* Copies of a function that the source itself lost since the module was loaded. */
u64 copytrace_source_missed(enum copytrace_function function);

#endif /* COPYTRACE_SOURCE_H */
