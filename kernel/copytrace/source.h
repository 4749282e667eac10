/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where copies are seen.
 */
#ifndef COPYTRACE_SOURCE_H
#define COPYTRACE_SOURCE_H

#include <linux/types.h>
#include <memwarden/copytrace.h>

/* Which one serves here; 0 or an errno, with its line. */
int source_choose(void);
enum copytrace_source source(void);
/* COPYTRACE_MERGED or 0. */
u32 source_flags(void);
/* How often a second the counter of the records' times ticks. */
u64 source_ticks_hz(void);

/* From now on copies are recorded, until it is called as often: 0 or an errno. May sleep. */
int source_start(void);
/* After the last one none is being recorded. */
void source_stop(void);

/* Copies that the source itself lost since it was started last, with none started before. */
u64 source_missed(void);

#endif /* COPYTRACE_SOURCE_H */
