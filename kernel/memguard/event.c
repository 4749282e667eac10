// SPDX-License-Identifier: GPL-2.0-only
/* Event names, and what each counts on which processor. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/module.h>
#include <linux/string.h>

#include "memguard.h"

/*
 * Raw codes: Arm ARM, "PMU events" (0x17 L2D_CACHE_REFILL, 0x18
 * L2D_CACHE_WB); Intel SDM vol. 3, "Performance Monitoring Events"
 * (LONGEST_LAT_CACHE.MISS 0x2e/0x41; Core 2 BUS_TRANS_BURST-like L2_LINES_IN
 * 0x24/0x70 with prefetches; Sandy Bridge OFFCORE_REQUESTS.ALL_DATA_RD
 * 0xb0/0x08).
 */
static const struct mg_event events[] = {
	{ "armv7", PERF_TYPE_RAW, 0x17, 0x18, 64 },
	{ "armv8", PERF_TYPE_RAW, 0x17, 0x18, 64 },
	{ "cortex-a7", PERF_TYPE_RAW, 0x17, 0x18, 64 },
	{ "cortex-a15", PERF_TYPE_RAW, 0x17, 0x18, 64 },
	{ "cortex-a53", PERF_TYPE_RAW, 0x17, 0x18, 64 },
	{ "cortex-a57", PERF_TYPE_RAW, 0x17, 0x18, 64 },
	{ "cortex-a72", PERF_TYPE_RAW, 0x17, 0x18, 64 },
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
 * @hw_type: a name of the table, or NULL
 * @read: a raw code that counts reads instead, or NULL
 * @write: a raw code that counts writes, or NULL
 * @bytes: traffic per event, or 0 for the table's
 *
 * Return: 0 or -EINVAL, with a line in the log that says what is wrong.
 */
int mg_event_choose(struct mg_event *event, const char *hw_type, const char *read,
		    const char *write, unsigned int bytes)
{
	const char *name = hw_type ? hw_type : "cache-misses";
	int i, err;

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
