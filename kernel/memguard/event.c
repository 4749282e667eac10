// SPDX-License-Identifier: GPL-2.0-only
/* Which event is counted: by name, by code, or as it is the processors' own. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpu.h>
#include <linux/module.h>
#include <linux/smp.h>
#if IS_ENABLED(CONFIG_ARM64) || IS_ENABLED(CONFIG_ARM)
#include <asm/cputype.h>
#endif
#if IS_ENABLED(CONFIG_X86)
#include <asm/processor.h>
#endif

#include "events.h"
#include "memguard.h"

/* A row of the table as perf has it. */
static struct mg_event event_of(const struct mw_event *row)
{
	struct mg_event event = {
		.name = row->name,
		.type = PERF_TYPE_RAW,
		.read = row->read,
		.write = row->write,
		.bytes = row->bytes ?: PAGE_SIZE,
	};

	switch (row->type) {
	case MW_EVENT_CACHE_MISSES:
		event.type = PERF_TYPE_HARDWARE;
		event.read = PERF_COUNT_HW_CACHE_MISSES;
		break;
	case MW_EVENT_LAST_LEVEL_READ_MISSES:
		event.type = PERF_TYPE_HW_CACHE;
		event.read = PERF_COUNT_HW_CACHE_LL | PERF_COUNT_HW_CACHE_OP_READ << 8 |
			     PERF_COUNT_HW_CACHE_RESULT_MISS << 16;
		break;
	case MW_EVENT_PAGE_FAULTS:
		event.type = PERF_TYPE_SOFTWARE;
		event.read = PERF_COUNT_SW_PAGE_FAULTS;
		break;
	case MW_EVENT_CYCLES:
		event.type = PERF_TYPE_HARDWARE;
		event.read = PERF_COUNT_HW_CPU_CYCLES;
		break;
	case MW_EVENT_INSTRUCTIONS:
		event.type = PERF_TYPE_HARDWARE;
		event.read = PERF_COUNT_HW_INSTRUCTIONS;
		break;
	}
	return event;
}

/* struct identity - what a processor says that it is, as struct mw_processor has it */
struct identity {
	u32 vendor, family, model;
};

#if IS_ENABLED(CONFIG_ARM64) || IS_ENABLED(CONFIG_ARM)
static void read_midr(void *midr)
{
	*(u32 *)midr = read_cpuid_id();
}

static void identify(int cpu, struct identity *id)
{
	u32 midr = 0;

	smp_call_function_single(cpu, read_midr, &midr, 1);
	*id = (struct identity){ .vendor = midr >> 24, .model = midr >> 4 & 0xfff };
}
#elif IS_ENABLED(CONFIG_X86)
static void identify(int cpu, struct identity *id)
{
	const struct cpuinfo_x86 *c = &cpu_data(cpu);

	*id = (struct identity){ .family = c->x86, .model = c->x86_model };
	if (c->x86_vendor == X86_VENDOR_INTEL)
		id->vendor = MW_INTEL;
	else if (c->x86_vendor == X86_VENDOR_AMD)
		id->vendor = MW_AMD;
	else if (c->x86_vendor == X86_VENDOR_HYGON)
		id->vendor = MW_HYGON;
}
#else
static void identify(int cpu, struct identity *id)
{
	*id = (struct identity){};
}
#endif

/*
 * What the processors of this machine count of memory traffic. Of several
 * kinds all must count by the same event.
 */
static const struct mw_event *own_event(void)
{
	const struct mw_event *found = NULL, *of = NULL;
	const char *why = NULL;
	struct identity id = {};
	int cpu;

	if (IS_ENABLED(CONFIG_RISCV))
		return mw_event_named("riscv");
	/* Which say nothing that the table could be asked by. */
	if (!IS_ENABLED(CONFIG_ARM64) && !IS_ENABLED(CONFIG_ARM) && !IS_ENABLED(CONFIG_X86))
		return mw_event_named("cache-misses");
	cpus_read_lock();
	for_each_online_cpu(cpu) {
		identify(cpu, &id);
		of = mw_event_of(id.vendor, id.family, id.model);
		if (!of)
			why = "is not in the table of events";
		else if (of->type == MW_EVENT_NONE)
			why = "counts no memory traffic in its cores";
		else if (found && (of->type != found->type || of->read != found->read ||
				   of->write != found->write || of->bytes != found->bytes))
			why = "counts by another event than the CPUs before it";
		if (why)
			break;
		if (!found)
			found = of;
	}
	cpus_read_unlock();
	if (!why)
		return found;
	pr_err("CPU%d (maker %#x, family %#x, model %#x) %s: give g_hw_type=%s, or g_hw_type=page-faults where there is no PMU; the self-test of memwarden guard start tells whether it is right\n",
	       cpu, id.vendor, id.family, id.model, why,
	       IS_ENABLED(CONFIG_X86) ?
		       "cache-misses (perf's own choice)" :
		       "armv8 (refills of the L2) or g_read_counter_id=0x2a, 0x37 (of an L3)");
	return NULL;
}

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
	const struct mw_event *row;
	int err;

	if (hw_type)
		row = mw_event_named(hw_type);
	else if (read)
		row = mw_event_named("cache-misses");
	else
		row = own_event();
	if (hw_type && (!row || row->type == MW_EVENT_NONE)) {
		pr_err("g_hw_type=%s %s; try armv8, nehalem, cache-misses or page-faults, or a raw code in g_read_counter_id=\n",
		       hw_type, row ? "counts no memory traffic" : "is unknown");
		return -EINVAL;
	}
	if (!row)
		return -EINVAL;
	*event = event_of(row);
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
