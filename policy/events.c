// SPDX-License-Identifier: GPL-2.0-only OR MIT
#include "events.h"

#define ARRAY_ROWS(table) ((u32)(sizeof(table) / sizeof((table)[0])))

/* Sources of the codes. */
#define ARMV7_ARM "Arm Architecture Reference Manual, DDI 0406C, PMU events"
#define ARMV8_ARM "Arm Architecture Reference Manual, DDI 0487B.a, PMU events"
#define ARM_DATA(core) "Arm's PMU event data, ARM-software/data 6aeb4c8, pmu/" core ".json"
/*
 * No event list is published for this core: use the architecture's event, as an earlier core does.
 */
#define COMMON_37(before, part_number) \
	"0x37 is common (Linux 6.12, common-and-microarch.json), as " before \
	" counts it; part number from " part_number
#define PMU_EVENTS(folder) "Linux 6.12, tools/perf/pmu-events/arch/" folder
#define PMU_EVENTS_7_3(folder) "Linux 7.3, tools/perf/pmu-events/arch/" folder
#define LIBPFM(file) "libpfm4, lib/events/" file
#define PERF "Linux, perf_event_open(2)"
#define SDM "Intel SDM vol. 3B, 253669-026US, appendix A"
#define INTEL_LIST(file) "Intel's event lists, intel/perfmon 6dadedf, " file

/* Arm: L2D_CACHE_REFILL and L2D_CACHE_WB, L3D_CACHE_REFILL, LL_CACHE_MISS_RD. */
#define L2_REFILL 0x17
#define L2_WRITE_BACK 0x18
#define L3_REFILL 0x2a
#define LAST_LEVEL_READ_MISS 0x37
/*
 * Intel: LONGEST_LAT_CACHE.MISS, L2_LINES_IN.ALL, OFFCORE_REQUESTS.ALL_DATA_RD,
 * L2_LINES_IN.SELF.ANY.
 */
#define LONGEST_LATENCY_MISS 0x412e
#define L2_LINES_IN 0x07f1
#define OFFCORE_DATA_READS 0x08b0
#define L2_LINES_IN_SELF 0x7024
/* Intel's small cores: L2_LINES_IN.S, .E, .M and .F. */
#define L2_LINES_IN_SEMF 0x1e25
/* Intel: requests that leave the core, by a mask of requests and responses in config1. */
#define OFFCORE 0x01b7
/* Intel: BUS_TRANS_BURST.SELF, full lines on the bus: refills and write-backs. */
#define BUS_BURSTS_SELF 0x406e
/*
 * AMD: data cache fills from local or remote DRAM that instructions wait for, and prefetches that
 * miss the L2 and the L3, whichever prefetcher they are from. No event counts both.
 */
#define DEMAND_FILLS 0x4843
#define PREFETCH_MISSES 0xff72

/* The L2 is the last level. Each core of a cluster counts the refills that it requests itself. */
#define L2_LAST(name, source, sure) \
	{ name, source, L2_REFILL, L2_WRITE_BACK, MW_EVENT_RAW, 64, \
	  MW_PREFETCHES | MW_WRITES, sure, 0, 0, 0 }
/*
 * The core has a private L2 and its cluster an L3. The core's write-backs go to the L3 and are not
 * counted. A cluster without private L2s has no L3 event either; there L2_REFILL counts at the
 * cluster's cache.
 */
#define L3_LAST(name, source, sure) \
	{ name, source, L3_REFILL, 0, MW_EVENT_RAW, 64, MW_PREFETCHES | MW_WRITES, sure, 0, 0, \
	  0 }
/*
 * If firmware sets CPUECTLR_EL1.EXTLLC, the event counts reads that miss the system cache.
 * Otherwise it counts refills by reads of the cluster's last cache: the L3, or the core's L2 if the
 * cluster has no L3. Hits in a system cache then count, too.
 */
#define SYSTEM_LAST(name, source, sure) \
	{ name, source, LAST_LEVEL_READ_MISS, 0, MW_EVENT_RAW, 64, MW_PREFETCHES | MW_WRITES, \
	  sure, 0, 0, 0 }
/* Zen: a line that a prefetcher fetched into the L2 is no fill from DRAM when the L1 gets it. */
#define ZEN(name, source, sure) \
	{ name, source, DEMAND_FILLS, 0, MW_EVENT_RAW, 64, MW_PREFETCHES | MW_WRITES, sure, 0, \
	  PREFETCH_MISSES, 0 }
/* Skylake and later: the core's prefetches into L1 and L2 count; those into the L3 do not. */
#define INTEL(name, source) \
	{ name, source, LONGEST_LATENCY_MISS, 0, MW_EVENT_RAW, 64, MW_PREFETCHES | MW_WRITES, \
	  MW_LISTED, 0, 0, 0 }
/*
 * Sandy Bridge to Broadwell: prefetches into the L2 do not count as misses of the last level, so a
 * stream would pass uncounted. So count all lines that enter the L2, including those that the L3
 * supplies.
 */
#define INTEL_L2(name, folder) \
	{ name, PMU_EVENTS("x86/" folder), L2_LINES_IN, 0, MW_EVENT_RAW, 64, \
	  MW_PREFETCHES | MW_WRITES | MW_SHARED_HITS, MW_LISTED, 0, 0, 0 }
/*
 * Requests by instructions and by all prefetchers; the mask selects those that miss the last level.
 * Some masks are the sum of those that the list has for data, for lines to write to and for code.
 */
#define INTEL_OFFCORE(name, source, mask) \
	{ name, source, OFFCORE, 0, MW_EVENT_RAW, 64, MW_PREFETCHES | MW_WRITES, MW_LISTED, 0, 0, \
	  mask }
/*
 * Crestmont and Skymont: misses of the last level are without the L2's prefetches. So count all
 * lines that enter the L2, including those that the L3 supplies.
 */
#define ATOM_L2(name, file) \
	{ name, INTEL_LIST(file), L2_LINES_IN_SEMF, 0, MW_EVENT_RAW, 64, \
	  MW_PREFETCHES | MW_WRITES | MW_SHARED_HITS, MW_MANUAL, 0, 0, 0 }
/*
 * Misses of the L2, or of the L3 if there is one. Prefetches of the L1 count, those of the L2 do
 * not.
 */
#define ATOM(name, source) \
	{ name, source, LONGEST_LATENCY_MISS, 0, MW_EVENT_RAW, 64, \
	  MW_WRITES, MW_LISTED, 0, 0, 0 }

static const struct mw_event events[] = {
	/* Names that MemGuard uses. */
	L2_LAST("armv7", ARMV7_ARM, MW_MANUAL),
	L2_LAST("armv8", ARMV8_ARM, MW_MANUAL),
	/* SDM: "excludes cache line fills due to a L2 hardware-prefetch". */
	{ "nehalem", PMU_EVENTS("x86/nehalemep"), LONGEST_LATENCY_MISS, 0, MW_EVENT_RAW, 64,
	  MW_WRITES, MW_LISTED, 0, 0, 0 },
	/* Lines that are fetched in order to write to them do not count. */
	{ "snb", PMU_EVENTS("x86/sandybridge"), OFFCORE_DATA_READS, 0, MW_EVENT_RAW, 64,
	  MW_PREFETCHES | MW_SHARED_HITS, MW_LISTED, 0, 0, 0 },

	L2_LAST("cortex-a7", ARM_DATA("cortex-a7"), MW_MANUAL),
	L2_LAST("cortex-a15", ARM_DATA("cortex-a15"), MW_MANUAL),
	L2_LAST("cortex-a17", ARM_DATA("cortex-a17"), MW_MANUAL),
	L2_LAST("cortex-a32", ARM_DATA("cortex-a32"), MW_MANUAL),
	L2_LAST("cortex-a34", PMU_EVENTS("arm64/arm/cortex-a34"), MW_LISTED),
	L2_LAST("cortex-a35", PMU_EVENTS("arm64/arm/cortex-a35"), MW_LISTED),
	L2_LAST("cortex-a53", ARM_DATA("cortex-a53"), MW_MANUAL),
	L2_LAST("cortex-a57", PMU_EVENTS("arm64/arm/cortex-a57-a72"), MW_LISTED),
	L2_LAST("cortex-a72", PMU_EVENTS("arm64/arm/cortex-a57-a72"), MW_LISTED),
	L2_LAST("cortex-a73", PMU_EVENTS("arm64/arm/cortex-a73"), MW_LISTED),
	L3_LAST("cortex-a55", PMU_EVENTS("arm64/arm/cortex-a55"), MW_LISTED),
	L3_LAST("cortex-a65", PMU_EVENTS("arm64/arm/cortex-a65-e1"), MW_LISTED),
	L3_LAST("cortex-a75", PMU_EVENTS("arm64/arm/cortex-a75"), MW_LISTED),
	L3_LAST("cortex-a76", PMU_EVENTS("arm64/arm/cortex-a76"), MW_LISTED),
	L3_LAST("cortex-a77", PMU_EVENTS("arm64/arm/cortex-a77"), MW_LISTED),
	L3_LAST("cortex-a78", PMU_EVENTS("arm64/arm/cortex-a78"), MW_LISTED),
	L3_LAST("cortex-x1", PMU_EVENTS("arm64/arm/cortex-x1"), MW_LISTED),
	SYSTEM_LAST("cortex-a320", COMMON_37("cortex-a520", "LLVM, Host.cpp"), MW_MANUAL),
	SYSTEM_LAST("cortex-a510", PMU_EVENTS("arm64/arm/cortex-a510"), MW_LISTED),
	SYSTEM_LAST("cortex-a520", ARM_DATA("cortex-a520"), MW_MANUAL),
	SYSTEM_LAST("cortex-a710", PMU_EVENTS("arm64/arm/cortex-a710"), MW_LISTED),
	SYSTEM_LAST("cortex-a715", ARM_DATA("cortex-a715"), MW_MANUAL),
	SYSTEM_LAST("cortex-a720", ARM_DATA("cortex-a720"), MW_MANUAL),
	SYSTEM_LAST("cortex-a725", COMMON_37("cortex-a720", "Linux 7.2, cputype.h"), MW_MANUAL),
	SYSTEM_LAST("cortex-x2", PMU_EVENTS("arm64/arm/cortex-x2"), MW_LISTED),
	SYSTEM_LAST("cortex-x3", ARM_DATA("cortex-x3"), MW_MANUAL),
	SYSTEM_LAST("cortex-x4", ARM_DATA("cortex-x4"), MW_MANUAL),
	SYSTEM_LAST("cortex-x925", COMMON_37("cortex-x4", "Linux 7.2, cputype.h"), MW_MANUAL),
	SYSTEM_LAST("c1-nano", COMMON_37("cortex-a520", "Linux 7.3, cputype.h"), MW_MANUAL),
	SYSTEM_LAST("c1-pro", COMMON_37("cortex-a720", "Linux 7.3, cputype.h"), MW_MANUAL),
	SYSTEM_LAST("c1-premium", COMMON_37("cortex-x4", "Linux 7.3, cputype.h"), MW_MANUAL),
	SYSTEM_LAST("c1-ultra", COMMON_37("cortex-x4", "Linux 7.3, cputype.h"), MW_MANUAL),
	SYSTEM_LAST("neoverse-n1", PMU_EVENTS("arm64/arm/neoverse-n1"), MW_LISTED),
	SYSTEM_LAST("neoverse-n2", PMU_EVENTS("arm64/arm/neoverse-n2-v2"), MW_LISTED),
	SYSTEM_LAST("neoverse-n3", PMU_EVENTS_7_3("arm64/arm/neoverse-n3"), MW_LISTED),
	SYSTEM_LAST("neoverse-v1", PMU_EVENTS("arm64/arm/neoverse-v1"), MW_LISTED),
	SYSTEM_LAST("neoverse-v2", PMU_EVENTS("arm64/arm/neoverse-n2-v2"), MW_LISTED),
	SYSTEM_LAST("neoverse-v3", PMU_EVENTS_7_3("arm64/arm/neoverse-v3"), MW_LISTED),
	/* Lines of 256 bytes. */
	{ "a64fx", PMU_EVENTS("arm64/fujitsu/a64fx"), L2_REFILL, L2_WRITE_BACK, MW_EVENT_RAW, 256,
	  MW_PREFETCHES | MW_WRITES, MW_LISTED, 0, 0, 0 },
	L3_LAST("olympus", PMU_EVENTS_7_3("arm64/nvidia/t410"), MW_LISTED),
	/* The L3 is a system cache; the core has no event for it. */
	{ "emag", PMU_EVENTS("arm64/ampere/emag"), L2_REFILL, 0, MW_EVENT_RAW, 64,
	  MW_PREFETCHES | MW_WRITES | MW_SHARED_HITS, MW_LISTED, 0, 0, 0 },
	{ "ampereone", PMU_EVENTS("arm64/ampere/ampereone"), L2_REFILL, 0, MW_EVENT_RAW, 64,
	  MW_PREFETCHES | MW_WRITES | MW_SHARED_HITS, MW_LISTED, 0, 0, 0 },
	/* Private L2s, a shared L3. The kernel's lists lack the common events; libpfm4 has them. */
	{ "thunderx2", LIBPFM("arm_cavium_tx2_events.h"), L2_REFILL, 0, MW_EVENT_RAW, 64,
	  MW_WRITES | MW_SHARED_HITS, MW_MANUAL, 0, 0, 0 },
	{ "tsv110", LIBPFM("arm_hisilicon_kunpeng_events.h"), L2_REFILL, 0, MW_EVENT_RAW, 64,
	  MW_WRITES | MW_SHARED_HITS, MW_MANUAL, 0, 0, 0 },
	/* The core counts no misses of its cluster's L2. */
	{ "apple", "Linux 7.3, drivers/perf/apple_m1_cpu_pmu.c", 0, 0, MW_EVENT_NONE, 64, 0,
	  MW_LISTED, 0, 0, 0 },

	{ "core2", SDM ", Core 2", L2_LINES_IN_SELF, 0, MW_EVENT_RAW, 64,
	  MW_PREFETCHES | MW_WRITES, MW_MANUAL, BUS_BURSTS_SELF, 0, 0 },
	{ "bonnell", PMU_EVENTS("x86/bonnell"), L2_LINES_IN_SELF, 0, MW_EVENT_RAW, 64,
	  MW_PREFETCHES | MW_WRITES, MW_LISTED, BUS_BURSTS_SELF, 0, 0 },
	/* Also Lynnfield and Nehalem-EX. */
	INTEL_OFFCORE("nehalem-ep", PMU_EVENTS("x86/nehalemep"), 0xf877),
	INTEL_OFFCORE("westmere", PMU_EVENTS("x86/westmereep-sp"), 0xf877),
	INTEL_L2("sandybridge", "sandybridge"),
	INTEL_L2("ivybridge", "ivybridge"),
	INTEL_L2("haswell", "haswell"),
	INTEL_L2("broadwell", "broadwell"),
	INTEL("skylake", PMU_EVENTS("x86/skylake")),
	INTEL("skylake-x", PMU_EVENTS("x86/skylakex")),
	INTEL("icelake", PMU_EVENTS("x86/icelake")),
	INTEL("icelake-x", PMU_EVENTS("x86/icelakex")),
	INTEL("rocketlake", PMU_EVENTS("x86/rocketlake")),
	INTEL("tigerlake", PMU_EVENTS("x86/tigerlake")),
	INTEL("sapphirerapids", PMU_EVENTS("x86/sapphirerapids")),
	INTEL("emeraldrapids", PMU_EVENTS("x86/emeraldrapids")),
	INTEL("graniterapids", PMU_EVENTS("x86/graniterapids")),
	/* The large cores of hybrids; the small ones follow. */
	INTEL("alderlake", PMU_EVENTS("x86/alderlake")),
	INTEL("meteorlake", PMU_EVENTS("x86/meteorlake")),
	INTEL("lunarlake", PMU_EVENTS("x86/lunarlake")),
	INTEL("arrowlake", PMU_EVENTS_7_3("x86/arrowlake")),
	INTEL("pantherlake", PMU_EVENTS_7_3("x86/pantherlake")),
	INTEL_OFFCORE("silvermont", PMU_EVENTS("x86/silvermont"), 0x16800030f7),
	INTEL_OFFCORE("goldmont", PMU_EVENTS("x86/goldmont"), 0x36000032b7),
	INTEL_OFFCORE("goldmont-plus", PMU_EVENTS("x86/goldmontplus"), 0x02000032b7),
	INTEL_OFFCORE("tremont", PMU_EVENTS("x86/elkhartlake"), 0x2184000477),
	ATOM("gracemont", PMU_EVENTS("x86/alderlaken")),
	ATOM_L2("crestmont", "MTL 1.22"),
	ATOM_L2("skymont", "LNL 1.26"),
	ATOM_L2("grandridge", "GRR 1.13"),
	ATOM_L2("sierraforest", "SRF 1.18"),
	ATOM("darkmont", PMU_EVENTS_7_3("x86/pantherlake")),
	ATOM("clearwaterforest", PMU_EVENTS_7_3("x86/clearwaterforest")),
	ATOM("knightslanding", PMU_EVENTS("x86/knightslanding")),

	ZEN("zen1", "AMD PPR 54945, family 17h model 01h, PMCx043 and PMCx072", MW_MANUAL),
	ZEN("zen2", PMU_EVENTS("x86/amdzen2"), MW_LISTED),
	ZEN("zen3", PMU_EVENTS("x86/amdzen3"), MW_LISTED),
	ZEN("zen4", PMU_EVENTS("x86/amdzen4"), MW_LISTED),
	ZEN("zen5", PMU_EVENTS("x86/amdzen5"), MW_LISTED),

	/* The SBI's PMU extension: the firmware chooses the event for perf's name. */
	{ "riscv", "RISC-V SBI 0.3, PMU extension", 0, 0, MW_EVENT_LAST_LEVEL_READ_MISSES, 64, 0,
	  MW_MANUAL, 0, 0, 0 },
	{ "c910", PMU_EVENTS("riscv/thead/c900-legacy"), 0x11, 0, MW_EVENT_RAW, 64,
	  0, MW_LISTED, 0, 0, 0 },

	/* perf's names, on any processor. */
	{ "cache-misses", PERF, 0, 0, MW_EVENT_CACHE_MISSES, 64, 0, MW_MANUAL, 0, 0, 0 },
	{ "page-faults", PERF, 0, 0, MW_EVENT_PAGE_FAULTS, 0, 0, MW_MANUAL, 0, 0, 0 },
	{ "minor-faults", PERF, 0, 0, MW_EVENT_MINOR_FAULTS, 0, 0, MW_MANUAL, 0, 0, 0 },
	{ "soft", PERF, 0, 0, MW_EVENT_PAGE_FAULTS, 0, 0, MW_MANUAL, 0, 0, 0 },
	/* Not memory traffic; for trying out the machine. */
	{ "cycles", PERF, 0, 0, MW_EVENT_CYCLES, 64, 0, MW_MANUAL, 0, 0, 0 },
	{ "instructions", PERF, 0, 0, MW_EVENT_INSTRUCTIONS, 64, 0, MW_MANUAL, 0, 0, 0 },
};

/*
 * Part numbers: Linux 7.3, arch/arm64/include/asm/cputype.h, and the manuals
 * of Cortex-A7, A15 and A17; A32: ARM-software/data 6aeb4c8, cpus.json; A320: LLVM, Host.cpp.
 * Qualcomm's Kryos have the event of the core that each derives from, by Linux's lists of errata
 * and of safe processors, and by Host.cpp. Families and models: Linux 7.3,
 * tools/perf/pmu-events/arch/x86/mapfile.csv; AMD's 17h: Linux, arch/x86/kernel/cpu/amd.c.
 */
static const struct mw_processor processors[] = {
	{ "cortex-a7", MW_ARM, 0, 0xc07, 0xc07 },
	{ "cortex-a17", MW_ARM, 0, 0xc0e, 0xc0e },
	{ "cortex-a15", MW_ARM, 0, 0xc0f, 0xc0f },
	{ "cortex-a32", MW_ARM, 0, 0xd01, 0xd01 },
	{ "cortex-a34", MW_ARM, 0, 0xd02, 0xd02 },
	{ "cortex-a53", MW_ARM, 0, 0xd03, 0xd03 },
	{ "cortex-a35", MW_ARM, 0, 0xd04, 0xd04 },
	{ "cortex-a55", MW_ARM, 0, 0xd05, 0xd05 },
	{ "cortex-a65", MW_ARM, 0, 0xd06, 0xd06 },
	{ "cortex-a57", MW_ARM, 0, 0xd07, 0xd07 },
	{ "cortex-a72", MW_ARM, 0, 0xd08, 0xd08 },
	{ "cortex-a73", MW_ARM, 0, 0xd09, 0xd09 },
	{ "cortex-a75", MW_ARM, 0, 0xd0a, 0xd0a },
	{ "cortex-a76", MW_ARM, 0, 0xd0b, 0xd0b },
	{ "neoverse-n1", MW_ARM, 0, 0xd0c, 0xd0c },
	{ "cortex-a77", MW_ARM, 0, 0xd0d, 0xd0d },
	{ "cortex-a76", MW_ARM, 0, 0xd0e, 0xd0e }, /* A76AE */
	{ "neoverse-v1", MW_ARM, 0, 0xd40, 0xd40 },
	{ "cortex-a78", MW_ARM, 0, 0xd41, 0xd42 }, /* and A78AE */
	{ "cortex-a65", MW_ARM, 0, 0xd43, 0xd43 }, /* A65AE */
	{ "cortex-x1", MW_ARM, 0, 0xd44, 0xd44 },
	{ "cortex-a510", MW_ARM, 0, 0xd46, 0xd46 },
	{ "cortex-a710", MW_ARM, 0, 0xd47, 0xd47 },
	{ "cortex-x2", MW_ARM, 0, 0xd48, 0xd48 },
	{ "neoverse-n2", MW_ARM, 0, 0xd49, 0xd49 },
	{ "cortex-a65", MW_ARM, 0, 0xd4a, 0xd4a }, /* Neoverse-E1 */
	{ "cortex-a78", MW_ARM, 0, 0xd4b, 0xd4b }, /* A78C */
	{ "cortex-x1", MW_ARM, 0, 0xd4c, 0xd4c }, /* X1C */
	{ "cortex-a715", MW_ARM, 0, 0xd4d, 0xd4d },
	{ "cortex-x3", MW_ARM, 0, 0xd4e, 0xd4e },
	{ "neoverse-v2", MW_ARM, 0, 0xd4f, 0xd4f },
	{ "cortex-a520", MW_ARM, 0, 0xd80, 0xd80 },
	{ "cortex-a720", MW_ARM, 0, 0xd81, 0xd81 },
	{ "cortex-x4", MW_ARM, 0, 0xd82, 0xd82 },
	{ "neoverse-v3", MW_ARM, 0, 0xd83, 0xd84 }, /* V3AE, V3 */
	{ "cortex-x925", MW_ARM, 0, 0xd85, 0xd85 },
	{ "cortex-a725", MW_ARM, 0, 0xd87, 0xd87 },
	{ "cortex-a520", MW_ARM, 0, 0xd88, 0xd88 }, /* A520AE */
	{ "cortex-a720", MW_ARM, 0, 0xd89, 0xd89 }, /* A720AE */
	{ "c1-nano", MW_ARM, 0, 0xd8a, 0xd8a },
	{ "c1-pro", MW_ARM, 0, 0xd8b, 0xd8b },
	{ "c1-ultra", MW_ARM, 0, 0xd8c, 0xd8c },
	{ "neoverse-n3", MW_ARM, 0, 0xd8e, 0xd8e },
	{ "cortex-a320", MW_ARM, 0, 0xd8f, 0xd8f },
	{ "c1-premium", MW_ARM, 0, 0xd90, 0xd90 },
	{ "cortex-a53", MW_BROADCOM, 0, 0x100, 0x100 }, /* Brahma-B53 */
	{ "thunderx2", MW_BROADCOM, 0, 0x516, 0x516 }, /* Vulcan */
	{ "thunderx2", MW_CAVIUM, 0, 0x0af, 0x0af },
	{ "tsv110", MW_HISILICON, 0, 0xd01, 0xd01 }, /* Kunpeng 920 */
	{ "cortex-a73", MW_QUALCOMM, 0, 0x800, 0x800 }, /* Kryo 2xx Gold */
	{ "cortex-a53", MW_QUALCOMM, 0, 0x801, 0x801 }, /* Kryo 2xx Silver */
	{ "cortex-a75", MW_QUALCOMM, 0, 0x802, 0x802 }, /* Kryo 3xx Gold */
	{ "cortex-a55", MW_QUALCOMM, 0, 0x803, 0x803 }, /* Kryo 3xx Silver */
	{ "cortex-a76", MW_QUALCOMM, 0, 0x804, 0x804 }, /* Kryo 4xx Gold */
	{ "cortex-a55", MW_QUALCOMM, 0, 0x805, 0x805 }, /* Kryo 4xx and 5xx Silver */
	{ "neoverse-n2", MW_MICROSOFT, 0, 0xd49, 0xd49 }, /* Azure Cobalt 100 */
	{ "a64fx", MW_FUJITSU, 0, 0x001, 0x001 },
	{ "olympus", MW_NVIDIA, 0, 0x010, 0x010 },
	{ "emag", MW_APM, 0, 0x000, 0x000 },
	{ "ampereone", MW_AMPERE, 0, 0xac3, 0xac4 },
	{ "apple", MW_APPLE, 0, 0x022, 0x039 }, /* M1 and M2 */

	{ "core2", MW_INTEL, 6, 0x0f, 0x0f },
	{ "core2", MW_INTEL, 6, 0x16, 0x17 },
	{ "bonnell", MW_INTEL, 6, 0x1c, 0x1c },
	{ "bonnell", MW_INTEL, 6, 0x26, 0x27 },
	{ "bonnell", MW_INTEL, 6, 0x35, 0x36 },
	{ "nehalem-ep", MW_INTEL, 6, 0x1a, 0x1a },
	{ "nehalem-ep", MW_INTEL, 6, 0x1e, 0x1f },
	{ "nehalem-ep", MW_INTEL, 6, 0x2e, 0x2e },
	{ "westmere", MW_INTEL, 6, 0x25, 0x25 },
	{ "westmere", MW_INTEL, 6, 0x2c, 0x2c },
	{ "westmere", MW_INTEL, 6, 0x2f, 0x2f },
	{ "sandybridge", MW_INTEL, 6, 0x2a, 0x2a },
	{ "sandybridge", MW_INTEL, 6, 0x2d, 0x2d },
	{ "ivybridge", MW_INTEL, 6, 0x3a, 0x3a },
	{ "ivybridge", MW_INTEL, 6, 0x3e, 0x3e },
	{ "haswell", MW_INTEL, 6, 0x3c, 0x3c },
	{ "haswell", MW_INTEL, 6, 0x3f, 0x3f },
	{ "haswell", MW_INTEL, 6, 0x45, 0x46 },
	{ "broadwell", MW_INTEL, 6, 0x3d, 0x3d },
	{ "broadwell", MW_INTEL, 6, 0x47, 0x47 },
	{ "broadwell", MW_INTEL, 6, 0x4f, 0x4f },
	{ "broadwell", MW_INTEL, 6, 0x56, 0x56 },
	{ "skylake", MW_INTEL, 6, 0x4e, 0x4e },
	{ "skylake", MW_INTEL, 6, 0x5e, 0x5e },
	{ "skylake", MW_INTEL, 6, 0x8e, 0x8e },
	{ "skylake", MW_INTEL, 6, 0x9e, 0x9e },
	{ "skylake", MW_INTEL, 6, 0xa5, 0xa6 },
	{ "skylake-x", MW_INTEL, 6, 0x55, 0x55 }, /* and Cascade Lake, of the same model */
	{ "icelake", MW_INTEL, 6, 0x7d, 0x7e },
	{ "icelake-x", MW_INTEL, 6, 0x6a, 0x6a },
	{ "icelake-x", MW_INTEL, 6, 0x6c, 0x6c },
	{ "tigerlake", MW_INTEL, 6, 0x8c, 0x8d },
	{ "rocketlake", MW_INTEL, 6, 0xa7, 0xa7 },
	{ "sapphirerapids", MW_INTEL, 6, 0x8f, 0x8f },
	{ "emeraldrapids", MW_INTEL, 6, 0xcf, 0xcf },
	{ "graniterapids", MW_INTEL, 6, 0xad, 0xae },
	{ "alderlake", MW_INTEL, 6, 0x97, 0x97 },
	{ "alderlake", MW_INTEL, 6, 0x9a, 0x9a },
	{ "alderlake", MW_INTEL, 6, 0xb7, 0xb7 }, /* Raptor Lake */
	{ "alderlake", MW_INTEL, 6, 0xba, 0xba },
	{ "alderlake", MW_INTEL, 6, 0xbf, 0xbf },
	{ "gracemont", MW_INTEL, 6, 0xbe, 0xbe },
	{ "meteorlake", MW_INTEL, 6, 0xaa, 0xaa },
	{ "meteorlake", MW_INTEL, 6, 0xac, 0xac },
	{ "meteorlake", MW_INTEL, 6, 0xb5, 0xb5 },
	{ "lunarlake", MW_INTEL, 6, 0xbd, 0xbd },
	{ "arrowlake", MW_INTEL, 6, 0xc5, 0xc6 },
	{ "pantherlake", MW_INTEL, 6, 0xcc, 0xcc },
	{ "pantherlake", MW_INTEL, 6, 0xd5, 0xd5 },
	{ "pantherlake", MW_INTEL, 6, 0xe5, 0xe5 },
	{ "silvermont", MW_INTEL, 6, 0x37, 0x37 },
	{ "silvermont", MW_INTEL, 6, 0x4a, 0x4a },
	{ "silvermont", MW_INTEL, 6, 0x4c, 0x4d },
	{ "silvermont", MW_INTEL, 6, 0x5a, 0x5a },
	{ "goldmont", MW_INTEL, 6, 0x5c, 0x5c },
	{ "goldmont", MW_INTEL, 6, 0x5f, 0x5f },
	{ "goldmont-plus", MW_INTEL, 6, 0x7a, 0x7a },
	{ "tremont", MW_INTEL, 6, 0x86, 0x86 },
	{ "tremont", MW_INTEL, 6, 0x96, 0x96 },
	{ "tremont", MW_INTEL, 6, 0x9c, 0x9c },
	{ "grandridge", MW_INTEL, 6, 0xb6, 0xb6 },
	{ "sierraforest", MW_INTEL, 6, 0xaf, 0xaf },
	{ "clearwaterforest", MW_INTEL, 6, 0xdd, 0xdd },
	{ "knightslanding", MW_INTEL, 6, 0x57, 0x57 },
	{ "knightslanding", MW_INTEL, 6, 0x85, 0x85 },

	{ "zen1", MW_AMD, 0x17, 0x00, 0x2f },
	{ "zen2", MW_AMD, 0x17, 0x30, 0x4f },
	{ "zen1", MW_AMD, 0x17, 0x50, 0x5f },
	{ "zen2", MW_AMD, 0x17, 0x60, 0xff },
	{ "zen3", MW_AMD, 0x19, 0x00, 0x0f },
	{ "zen4", MW_AMD, 0x19, 0x10, 0x1f },
	{ "zen3", MW_AMD, 0x19, 0x20, 0x2f },
	{ "zen3", MW_AMD, 0x19, 0x40, 0x5f },
	{ "zen4", MW_AMD, 0x19, 0x60, 0xff },
	{ "zen5", MW_AMD, 0x1a, 0x00, 0x4f },
	{ "zen5", MW_AMD, 0x1a, 0x60, 0x7f },
	{ "zen1", MW_HYGON, 0x18, 0x00, 0x0f },
};

/* Hybrids: the events of their large and small cores, which share a model. */
static const struct {
	const char *large, *small;
} hybrids[] = {
	{ "alderlake", "gracemont" },
	{ "meteorlake", "crestmont" },
	{ "lunarlake", "skymont" },
	{ "arrowlake", "skymont" },
	{ "pantherlake", "darkmont" },
};

/**
 * mw_events() - all events
 * @count: set to the number of events
 */
const struct mw_event *mw_events(u32 *count)
{
	*count = ARRAY_ROWS(events);
	return events;
}

/**
 * mw_processors() - all processors with a known event
 * @count: set to the number of rows
 */
const struct mw_processor *mw_processors(u32 *count)
{
	*count = ARRAY_ROWS(processors);
	return processors;
}

/**
 * mw_event_named() - the event with this name, or NULL
 * @name: as the user types it
 */
const struct mw_event *mw_event_named(const char *name)
{
	for (u32 i = 0; i < ARRAY_ROWS(events); i++)
		if (!strcmp(events[i].name, name))
			return &events[i];
	return NULL;
}

/**
 * mw_small_cores() - the event of a hybrid's small cores
 * @large: the name of its large cores' event
 *
 * Return: the name, or NULL if the processor is not a hybrid.
 */
const char *mw_small_cores(const char *large)
{
	for (u32 i = 0; i < ARRAY_ROWS(hybrids); i++)
		if (!strcmp(hybrids[i].large, large))
			return hybrids[i].small;
	return NULL;
}

/**
 * mw_event_of() - the event that counts a processor's memory traffic, or NULL if unknown
 * @vendor: enum mw_vendor
 * @family: CPUID family; 0 for Arm
 * @model: CPUID model, or the part number in MIDR_EL1
 * @core: enum mw_core_type; if that of a hybrid is unknown, the result is the large cores' event
 */
const struct mw_event *mw_event_of(u32 vendor, u32 family, u32 model, u32 core)
{
	const struct mw_processor *found = NULL;
	const char *small;

	for (u32 i = 0; i < ARRAY_ROWS(processors) && !found; i++) {
		const struct mw_processor *p = &processors[i];

		if (p->vendor == vendor && p->family == family && p->first <= model &&
		    model <= p->last)
			found = p;
	}
	if (!found)
		return NULL;
	small = core == MW_SMALL_CORE ? mw_small_cores(found->event) : NULL;
	return mw_event_named(small ? small : found->event);
}
