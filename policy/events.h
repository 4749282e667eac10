/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What processors count of memory traffic: names of events for a regulator,
 * and which of them is each processor's own. One table for the module and
 * for user space.
 *
 * A regulator needs a counter of the core's own, since it has to interrupt
 * that core: counters of a cluster, a socket or a memory controller don't.
 */
#ifndef MEMWARDEN_EVENTS_H
#define MEMWARDEN_EVENTS_H

#include "types.h"

/* How an event is asked for; each host has its own numbers for these. */
enum mw_event_type {
	MW_EVENT_RAW, /* a code of the processor's */
	MW_EVENT_CACHE_MISSES, /* perf's names */
	MW_EVENT_LAST_LEVEL_READ_MISSES,
	MW_EVENT_PAGE_FAULTS,
	MW_EVENT_MINOR_FAULTS,
	MW_EVENT_CYCLES,
	MW_EVENT_INSTRUCTIONS,
	MW_EVENT_NONE, /* the processor has none that would do */
};

/* What a count of reads has in it, beside the lines that loads wait for. */
enum mw_includes {
	MW_PREFETCHES = 1 << 0, /* lines that the core's prefetchers fetch */
	MW_WRITES = 1 << 1, /* lines that are fetched to be written to */
	MW_SHARED_HITS = 1 << 2, /* what a cache behind the core's own has */
};

/* How an event is known to be the right one. */
enum mw_sure {
	MW_SEEN, /* the self-test, on such a processor */
	MW_LISTED, /* the kernel's list of the processor's events has it */
	MW_MANUAL, /* the processor's manual alone */
};

/*
 * struct mw_event - an event, by its name
 *
 * Names of processors are the kernel's own; others are MemGuard's and perf's.
 */
struct mw_event {
	const char *name;
	const char *source; /* where its codes are from */
	u64 read;
	u64 write; /* lines written to memory; 0: no such event */
	u32 type; /* enum mw_event_type */
	u32 bytes; /* memory traffic of an event; 0: a page */
	u32 includes; /* enum mw_includes, a bit each */
	u32 sure; /* enum mw_sure */
	u64 combined; /* lines read and written in one count; 0: no such event */
};

/* Makers of processors: Arm's numbers for implementers (MIDR_EL1), and ours. */
enum mw_vendor {
	MW_ARM = 0x41,
	MW_BROADCOM = 0x42,
	MW_FUJITSU = 0x46,
	MW_NVIDIA = 0x4e,
	MW_APM = 0x50,
	MW_APPLE = 0x61,
	MW_MICROSOFT = 0x6d,
	MW_AMPERE = 0xc0,
	MW_INTEL = 0x100,
	MW_AMD,
	MW_HYGON,
};

/* struct mw_processor - processors whose own event is the one of this name */
struct mw_processor {
	const char *event;
	u32 vendor; /* enum mw_vendor */
	u32 family; /* CPUID's family; 0 for Arm's */
	u32 first, last; /* CPUID's models, or part numbers of MIDR_EL1 */
};

const struct mw_event *mw_events(u32 *count);
const struct mw_processor *mw_processors(u32 *count);
const struct mw_event *mw_event_named(const char *name);
const struct mw_event *mw_event_of(u32 vendor, u32 family, u32 model);

#endif /* MEMWARDEN_EVENTS_H */
