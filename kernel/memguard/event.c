// SPDX-License-Identifier: GPL-2.0-only
/* Event names, and what each counts on which processor. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpu.h>
#include <linux/module.h>
#include <linux/smp.h>
#include <linux/string.h>
#if IS_ENABLED(CONFIG_ARM64)
#include <asm/cputype.h>
#endif

#include "memguard.h"

/*
 * Raw codes: Arm ARM, "PMU events" (0x17 L2D_CACHE_REFILL, 0x18
 * L2D_CACHE_WB), for cores whose technical reference manual has an L2 as the
 * last level, with their part number in MIDR_EL1; Intel SDM vol. 3,
 * "Performance Monitoring Events" (LONGEST_LAT_CACHE.MISS 0x2e/0x41; Core 2
 * BUS_TRANS_BURST-like L2_LINES_IN 0x24/0x70 with prefetches; Sandy Bridge
 * OFFCORE_REQUESTS.ALL_DATA_RD 0xb0/0x08).
 */
static const struct mg_event events[] = {
	{ "armv7", PERF_TYPE_RAW, 0x17, 0x18, 64 },
	{ "armv8", PERF_TYPE_RAW, 0x17, 0x18, 64 },
	{ "cortex-a7", PERF_TYPE_RAW, 0x17, 0x18, 64, 0xc07 },
	{ "cortex-a15", PERF_TYPE_RAW, 0x17, 0x18, 64, 0xc0f },
	{ "cortex-a35", PERF_TYPE_RAW, 0x17, 0x18, 64, 0xd04 },
	{ "cortex-a53", PERF_TYPE_RAW, 0x17, 0x18, 64, 0xd03 },
	{ "cortex-a57", PERF_TYPE_RAW, 0x17, 0x18, 64, 0xd07 },
	{ "cortex-a72", PERF_TYPE_RAW, 0x17, 0x18, 64, 0xd08 },
	{ "cortex-a73", PERF_TYPE_RAW, 0x17, 0x18, 64, 0xd09 },
	{ "core2", PERF_TYPE_RAW, 0x7024, 0, 64 },
	{ "nehalem", PERF_TYPE_RAW, 0x412e, 0, 64 },
	{ "snb", PERF_TYPE_RAW, 0x08b0, 0, 64 },
	{ "skylake", PERF_TYPE_RAW, 0x412e, 0, 64 },
	{ "cache-misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES, 0, 64 },
	{ "page-faults", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS, 0, PAGE_SIZE },
	{ "soft", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS, 0, PAGE_SIZE },
	/* Not memory traffic: for trying the machine out. */
	{ "cycles", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES, 0, 64 },
	{ "instructions", PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS, 0, 64 },
};

#if IS_ENABLED(CONFIG_ARM64)
static void read_midr(void *midr)
{
	*(u32 *)midr = read_cpuid_id();
}

/* The row of a processor, or NULL. */
static const struct mg_event *event_of(u32 midr)
{
	int i;

	if (MIDR_IMPLEMENTOR(midr) != ARM_CPU_IMP_ARM)
		return NULL;
	for (i = 0; i < ARRAY_SIZE(events); i++)
		if (events[i].part && events[i].part == MIDR_PARTNUM(midr))
			return &events[i];
	return NULL;
}

/*
 * What the processors of this machine count of memory traffic. perf's
 * "cache-misses" are refills of the L1 on Arm.
 */
static const char *default_name(void)
{
	const struct mg_event *found = NULL;
	u32 midr = 0;
	int cpu;

	cpus_read_lock();
	for_each_online_cpu(cpu) {
		const struct mg_event *of = NULL;

		if (!smp_call_function_single(cpu, read_midr, &midr, 1))
			of = event_of(midr);
		if (!of || (found && (of->read != found->read || of->write != found->write))) {
			found = NULL;
			break;
		}
		if (!found)
			found = of;
	}
	cpus_read_unlock();
	if (found)
		return found->name;
	pr_err("which event of CPU%d (MIDR %#x) counts memory traffic is not known: give g_hw_type=armv8 (refills of the L2), g_read_counter_id=0x2a or 0x37 (of an L3), or g_hw_type=page-faults where there is no PMU; the self-test of memwarden guard start tells whether it is right\n",
	       cpu, midr);
	return NULL;
}
#else
static const char *default_name(void)
{
	return "cache-misses";
}
#endif

static int raw_code(const char *what, const char *text, u64 *code)
{
	int err = kstrtou64(text, 0, code);

	if (err || !*code) {
		pr_err("%s=%s: give a raw event code such as 0x17\n", what, text);
		return -EINVAL;
	}
	return 0;
}

/**
 * mg_event_choose() - the event that the module's parameters ask for
 * @event: where to put it
 * @hw_type: a name of the table, or NULL for what the processors have
 * @read: a raw code that counts reads instead, or NULL
 * @write: a raw code that counts writes, or NULL
 * @bytes: traffic per event, or 0 for the table's
 *
 * Return: 0 or -EINVAL, with a line in the log that says what is wrong.
 */
int mg_event_choose(struct mg_event *event, const char *hw_type, const char *read,
		    const char *write, unsigned int bytes)
{
	const char *name = hw_type;
	int i, err;

	if (!name)
		name = read ? "cache-misses" : default_name();
	if (!name)
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(events); i++)
		if (!strcmp(events[i].name, name))
			break;
	if (i == ARRAY_SIZE(events)) {
		pr_err("g_hw_type=%s is unknown; try armv8, nehalem, cache-misses or page-faults, or a raw code in g_read_counter_id=\n",
		       name);
		return -EINVAL;
	}
	*event = events[i];
	if (read) {
		err = raw_code("g_read_counter_id", read, &event->read);
		if (err)
			return err;
		event->name = "raw";
		event->type = PERF_TYPE_RAW;
		event->write = 0;
	}
	if (write) {
		if (event->type != PERF_TYPE_RAW) {
			pr_err("g_write_counter_id=%s needs a raw read event too: g_read_counter_id=\n",
			       write);
			return -EINVAL;
		}
		err = raw_code("g_write_counter_id", write, &event->write);
		if (err)
			return err;
	}
	if (bytes)
		event->bytes = bytes;
	return 0;
}
