/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Events that count memory traffic: their names, and which event each processor uses. The kernel
 * module and user space share this table.
 *
 * A regulator needs a counter in the core itself, because the counter has to interrupt that core.
 * The counters of a cluster, a socket or a memory controller do not.
 */
#ifndef MEMWARDEN_EVENTS_H
#define MEMWARDEN_EVENTS_H

#include "types.h"

/* How an event is requested; each host has its own numbers for these. */
enum mw_event_type {
	MW_EVENT_RAW, /* a code of the processor */
	MW_EVENT_CACHE_MISSES, /* the events that perf names */
	MW_EVENT_LAST_LEVEL_READ_MISSES,
	MW_EVENT_PAGE_FAULTS,
	MW_EVENT_MINOR_FAULTS,
	MW_EVENT_CYCLES,
	MW_EVENT_INSTRUCTIONS,
	MW_EVENT_NONE, /* the processor has no suitable event */
};

/* What a count of reads includes, besides the lines that loads wait for. */
enum mw_includes {
	MW_PREFETCHES = 1 << 0, /* lines that the core's prefetchers fetch */
	MW_WRITES = 1 << 1, /* lines that are fetched in order to write to them */
	MW_SHARED_HITS = 1 << 2, /* lines that a cache behind the core's own supplies */
};

/* What confirms that the event is the right one. */
enum mw_sure {
	MW_SEEN, /* the self-test, on such a processor */
	MW_LISTED, /* the kernel's list of the processor's events */
	MW_MANUAL, /* only its maker's documents */
};

/*
 * struct mw_event - an event and its name
 *
 * Processors have the kernel's names; other names come from MemGuard and perf.
 */
struct mw_event {
	const char *name;
	const char *source; /* where the codes come from */
	u64 read;
	u64 write; /* lines written to memory; 0: no such event */
	u32 type; /* enum mw_event_type */
	u32 bytes; /* memory traffic per event; 0: a page */
	u32 includes; /* bits of enum mw_includes */
	u32 sure; /* enum mw_sure */
	u64 combined; /* lines read and written in one count; 0: no such event */
	u64 read_too; /* lines read that @read does not count: a second counter; 0: none */
	u64 read_config1; /* perf's config1 for @read: Intel's mask of requests and responses */
};

/* Processor vendors: Arm's implementer codes (MIDR_EL1), and our own numbers. */
enum mw_vendor {
	MW_ARM = 0x41,
	MW_BROADCOM = 0x42,
	MW_CAVIUM = 0x43,
	MW_FUJITSU = 0x46,
	MW_HISILICON = 0x48,
	MW_NVIDIA = 0x4e,
	MW_APM = 0x50,
	MW_QUALCOMM = 0x51,
	MW_APPLE = 0x61,
	MW_MICROSOFT = 0x6d,
	MW_AMPERE = 0xc0,
	MW_INTEL = 0x100,
	MW_AMD,
	MW_HYGON,
};

/* Core types of Intel's hybrid processors: CPUID 1AH, EAX, bits 31 to 24. */
enum mw_core_type {
	MW_ANY_CORE,
	MW_SMALL_CORE = 0x20, /* Atom */
	MW_LARGE_CORE = 0x40, /* Core */
};

/* struct mw_processor - a range of processors and the name of their event */
struct mw_processor {
	const char *event;
	u32 vendor; /* enum mw_vendor */
	u32 family; /* CPUID family; 0 for Arm */
	u32 first, last; /* CPUID models, or part numbers in MIDR_EL1 */
};

const struct mw_event *mw_events(u32 *count);
const struct mw_processor *mw_processors(u32 *count);
const struct mw_event *mw_event_named(const char *name);
const char *mw_small_cores(const char *large);
const struct mw_event *mw_event_of(u32 vendor, u32 family, u32 model, u32 core);

#endif /* MEMWARDEN_EVENTS_H */
