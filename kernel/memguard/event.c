// SPDX-License-Identifier: GPL-2.0-only
/* The event that each core counts: by name, by code, or the processor's own. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpu.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/smp.h>
#if IS_ENABLED(CONFIG_ARM64) || IS_ENABLED(CONFIG_ARM)
#include <asm/cputype.h>
#endif
#if IS_ENABLED(CONFIG_X86)
#include <asm/processor.h>
#endif

#include "compat.h"
#include "events.h"
#include "memguard.h"

#define MG_LINE_BYTES 64

/* g_write_counter_id= is set: it counts writes and overrides the table. */
static bool writes_given;

/* A row of the table in perf's terms. */
static struct mg_event event_of(const struct mw_event *row)
{
	struct mg_event event = {
		.name = row->name,
		.read.type = PERF_TYPE_RAW,
		.read.config = row->read,
		.read.config1 = row->read_config1,
		.read_too.type = PERF_TYPE_RAW,
		.read_too.config = row->read_too,
		.write.type = PERF_TYPE_RAW,
		.write.config = row->write,
		.bytes = row->bytes ?: PAGE_SIZE,
	};

	if (mg_guard.combined && !writes_given && row->combined) {
		event.read.config = row->combined;
		event.read.config1 = 0;
		event.read_too.config = 0;
		event.write.config = 0;
		event.both = true;
	}
	switch (row->type) {
	case MW_EVENT_CACHE_MISSES:
		event.read.type = PERF_TYPE_HARDWARE;
		event.read.config = PERF_COUNT_HW_CACHE_MISSES;
		break;
	case MW_EVENT_LAST_LEVEL_READ_MISSES:
		event.read.type = PERF_TYPE_HW_CACHE;
		event.read.config = PERF_COUNT_HW_CACHE_LL | PERF_COUNT_HW_CACHE_OP_READ << 8 |
			     PERF_COUNT_HW_CACHE_RESULT_MISS << 16;
		break;
	case MW_EVENT_PAGE_FAULTS:
		event.read.type = PERF_TYPE_SOFTWARE;
		event.read.config = PERF_COUNT_SW_PAGE_FAULTS;
		break;
	case MW_EVENT_MINOR_FAULTS:
		event.read.type = PERF_TYPE_SOFTWARE;
		event.read.config = PERF_COUNT_SW_PAGE_FAULTS_MIN;
		break;
	case MW_EVENT_CYCLES:
		event.read.type = PERF_TYPE_HARDWARE;
		event.read.config = PERF_COUNT_HW_CPU_CYCLES;
		break;
	case MW_EVENT_INSTRUCTIONS:
		event.read.type = PERF_TYPE_HARDWARE;
		event.read.config = PERF_COUNT_HW_INSTRUCTIONS;
		break;
	}
	return event;
}

/* struct identity - how a processor identifies itself, as in struct mw_processor */
struct identity {
	u32 vendor, family, model, core;
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
/* The leaf that tells the core type of a hybrid. */
#define CPUID_HYBRID 0x1a

static void read_core_type(void *core)
{
	*(u32 *)core = cpuid_eax(CPUID_HYBRID) >> 24;
}

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
	if (boot_cpu_has(X86_FEATURE_HYBRID_CPU))
		smp_call_function_single(cpu, read_core_type, &id->core, 1);
}
#else
static void identify(int cpu, struct identity *id)
{
	*id = (struct identity){};
}
#endif

/* The event for the memory traffic of an online CPU; NULL with a message in the log. */
static const struct mw_event *own_event(int cpu)
{
	struct identity id = {};
	const struct mw_event *row;

	if (IS_ENABLED(CONFIG_RISCV))
		return mw_event_named("riscv");
	identify(cpu, &id);
	row = mw_event_of(id.vendor, id.family, id.model, id.core);
	if (row && row->type != MW_EVENT_NONE)
		return row;
	pr_err("CPU%d (maker %#x, family %#x, model %#x) %s: give g_hw_type=%s, or g_hw_type=page-faults where there is no PMU; the self-test of memwarden guard start tells whether it is right\n",
	       cpu, id.vendor, id.family, id.model,
	       row ? "counts no memory traffic in its cores" :
		     "is not in the table of events",
	       IS_ENABLED(CONFIG_ARM64) || IS_ENABLED(CONFIG_ARM) ?
		       "armv8 (refills of the L2) or 0x2a, 0x37 (of an L3)" :
		       "cache-misses (perf's own choice)");
	return NULL;
}

/**
 * mg_event_code() - the code of one resource
 * @event: event of a core
 * @resource: reads or writes
 *
 * Return: a pointer into @event.
 */
const struct mg_code *mg_event_code(const struct mg_event *event, enum mw_resource resource)
{
	return resource == MW_READ ? &event->read : &event->write;
}

/**
 * mg_event_second() - the code of the second event that counts the budget of reads
 * @event: event of a core
 *
 * Return: a pointer into @event, or NULL if one event counts it.
 */
const struct mg_code *mg_event_second(const struct mg_event *event)
{
	if (event->read_too.config)
		return &event->read_too;
	return mg_guard.combined && event->write.config ? &event->write : NULL;
}

/**
 * mg_two_events_chosen() - does some core count a budget with two events?
 *
 * Return: true also if a combined budget may need them on a core that is offline.
 */
bool mg_two_events_chosen(void)
{
	int cpu;

	for_each_cpu(cpu, &mg_guard.cpus)
		if (mg_event_second(&per_cpu(mg_cores, cpu).event))
			return true;
	return mg_guard.combined;
}

/* One NAME=VALUE after a code; a name must not be repeated. */
static int code_field(char *text, struct mg_code *code)
{
	char *name = strsep(&text, "=");
	u64 *field = NULL;

	if (!strcmp(name, "config1"))
		field = &code->config1;
	else if (!strcmp(name, "config2"))
		field = &code->config2;
	if (!field || *field || !text || kstrtou64(text, 0, field) || !*field)
		return -EINVAL;
	return 0;
}

/* Parses 0x17, or 0x1b7:config1=0x10800. */
static int parse_code(char *text, struct mg_code *code)
{
	char *word;
	int err;

	*code = (struct mg_code){ .type = PERF_TYPE_RAW };
	err = kstrtou64(strsep(&text, ":"), 0, &code->config);
	while (!err && (word = strsep(&text, ":")))
		err = code_field(word, code);
	if (!err && !code->config)
		err = -EINVAL;
	return err;
}

/* Parses a raw code; with @too also the sum of two, as in 0x4843+0xff72. */
static int raw_code(const char *what, const char *text, struct mg_code *code,
		    struct mg_code *too)
{
	char copy[160], *rest = copy;
	int err = -EINVAL;

	if (strscpy(copy, text, sizeof(copy)) > 0) {
		err = parse_code(too ? strsep(&rest, "+") : rest, code);
		if (!err && too && rest)
			err = parse_code(rest, too);
	}
	if (err)
		pr_err("%s=%s: give a raw event code such as 0x17, or 0x1b7:config1=0x10800%s\n",
		       what, text, too ? ", or the sum of two, as in 0x4843+0xff72" : "");
	return err ? -EINVAL : 0;
}

static int event_named(const char *name, struct mg_event *event)
{
	const struct mw_event *row;

	if (!strncmp(name, "0x", 2)) {
		*event = (struct mg_event){
			.name = "raw", .both = true, .bytes = MG_LINE_BYTES,
		};
		return raw_code("g_hw_type", name, &event->read, &event->read_too);
	}
	row = mw_event_named(name);
	if (!row || row->type == MW_EVENT_NONE) {
		pr_err("g_hw_type=%s %s; try armv8, nehalem, cache-misses or page-faults, or a raw code in g_read_counter_id=\n",
		       name, row ? "counts no memory traffic" : "is unknown");
		return -EINVAL;
	}
	*event = event_of(row);
	return 0;
}

/* A raw code, or the event with this name. */
static int write_event(const char *what, const char *text, struct mg_event *event)
{
	const struct mw_event *row = mw_event_named(text);
	struct mg_event named;

	if (!row || row->type == MW_EVENT_NONE)
		return raw_code(what, text, &event->write, NULL);
	named = event_of(row);
	if (named.write.config) {
		event->write = named.write;
		return 0;
	}
	/* The config of cycles is 0, which stands for no event. */
	if (!named.read.config || named.read_too.config) {
		pr_err("%s=%s counts no writes: give a raw event code such as 0x18\n", what,
		       text);
		return -EINVAL;
	}
	event->write = named.read;
	event->write_name = row->name;
	event->write_bytes = named.bytes;
	return 0;
}

static void take_write_event(struct mg_event *event, const struct mg_event *from)
{
	event->write = from->write;
	event->write_name = from->write_name;
	event->write_bytes = from->write_bytes;
}

/* Gives a core an event from a list; -EEXIST if the core already has one. */
typedef int (*give_event)(struct mg_core *core, const struct mg_event *event);

static int give_read(struct mg_core *core, const struct mg_event *event)
{
	if (core->event.name)
		return -EEXIST;
	core->event = *event;
	return 0;
}

static int give_write(struct mg_core *core, const struct mg_event *event)
{
	if (core->write_given)
		return -EEXIST;
	take_write_event(&core->event, event);
	core->write_given = true;
	return 0;
}

/* Gives the CPUs in FIRST[-LAST] the event. */
static int give_to(const char *what, const struct mg_event *event, const char *entry,
		   const char *list, give_event give)
{
	cpumask_var_t cpus;
	int cpu, err;

	if (!zalloc_cpumask_var(&cpus, GFP_KERNEL))
		return -ENOMEM;
	err = cpulist_parse(list, cpus);
	if (!err && (cpumask_empty(cpus) || !cpumask_subset(cpus, cpu_possible_mask)))
		err = -EINVAL;
	if (err)
		pr_err("%s: %s@%s: give CPUs of this machine, as in %s@0-3\n", what, entry,
		       list, entry);
	for_each_cpu(cpu, cpus) {
		if (err)
			break;
		err = give(&per_cpu(mg_cores, cpu), event);
		if (err == -EEXIST) {
			pr_err("%s: CPU%d is named twice\n", what, cpu);
			err = -EINVAL;
		}
	}
	free_cpumask_var(cpus);
	return err;
}

/* One EVENT@FIRST[-LAST] of a list. */
static int event_for_cpus(const char *what, char *text, give_event give)
{
	char *name = strsep(&text, "@");
	struct mg_event event = {};
	int err;

	if (!text) {
		pr_err("%s: %s has no list of CPUs: give EVENT@FIRST-LAST,...\n", what, name);
		return -EINVAL;
	}
	err = give == give_write ? write_event(what, name, &event) :
				   event_named(name, &event);
	return err ?: give_to(what, &event, name, text, give);
}

static int events_by_cpu(const char *what, const char *list, give_event give)
{
	char *copy = kstrdup(list, GFP_KERNEL), *rest = copy, *entry;
	int cpu, err = 0;

	if (!copy)
		return -ENOMEM;
	while (!err && (entry = strsep(&rest, ",")))
		err = event_for_cpus(what, entry, give);
	kfree(copy);
	if (err)
		return err;
	for_each_cpu(cpu, &mg_guard.cpus) {
		const struct mg_core *core = &per_cpu(mg_cores, cpu);

		if (give == give_write ? core->write_given : !!core->event.name)
			continue;
		pr_err("%s=%s: CPU%d has no event: name one, or leave it out of cpus=\n",
		       what, list, cpu);
		return -EINVAL;
	}
	return 0;
}

static int own_events(void)
{
	int cpu;

	for_each_mg_cpu(cpu) {
		const struct mw_event *row = own_event(cpu);

		if (!row)
			return -EINVAL;
		per_cpu(mg_cores, cpu).event = event_of(row);
	}
	return 0;
}

static void event_for_all(const struct mg_event *event)
{
	int cpu;

	for_each_cpu(cpu, &mg_guard.cpus)
		per_cpu(mg_cores, cpu).event = *event;
}

static int named_or_own(const char *hw_type)
{
	struct mg_event event;
	int err;

	if (!hw_type || !strcmp(hw_type, "auto"))
		return own_events();
	if (strpbrk(hw_type, "@,"))
		return events_by_cpu("g_hw_type", hw_type, give_read);
	err = event_named(hw_type, &event);
	if (!err)
		event_for_all(&event);
	return err;
}

static int raw_read(const char *code)
{
	struct mg_event event = {
		.name = "raw", .both = true, .bytes = MG_LINE_BYTES,
	};
	int err = raw_code("g_read_counter_id", code, &event.read, &event.read_too);

	if (!err)
		event_for_all(&event);
	return err;
}

/* The event that counts writes, independent of the one for reads. */
static int given_writes(const char *text)
{
	struct mg_event event = {};
	int cpu, err;

	if (strpbrk(text, "@,"))
		return events_by_cpu("g_write_counter_id", text, give_write);
	err = write_event("g_write_counter_id", text, &event);
	for_each_cpu(cpu, &mg_guard.cpus)
		take_write_event(&per_cpu(mg_cores, cpu).event, &event);
	return err;
}

/* Can one budget cover reads and writes? It takes an event for each, or one event for both. */
static bool counts_both(const struct mg_event *event)
{
	return event->write.config || event->both;
}

/* All budgets have the same unit: an event stands for the same number of bytes on every core. */
static int agree(unsigned int bytes)
{
	bool known = false;
	int cpu;

	mg_guard.bytes = bytes;
	mg_guard.bytes_given = bytes;
	mg_guard.resources = MW_RESOURCES;
	for_each_cpu(cpu, &mg_guard.cpus) {
		const struct mg_event *event = &per_cpu(mg_cores, cpu).event;

		if (!event->name)
			continue;
		if (!mg_guard.bytes)
			mg_guard.bytes = event->bytes;
		if (!bytes && event->bytes != mg_guard.bytes) {
			pr_err("CPU%d: event %s is %u bytes of traffic, and that of the CPUs before it %u: give bytes_per_event=\n",
			       cpu, event->name, event->bytes, mg_guard.bytes);
			return -EINVAL;
		}
		if (!bytes && event->write_bytes && event->write_bytes != event->bytes) {
			pr_err("CPU%d: event %s is %u bytes of traffic, and write event %s %u: give bytes_per_event=\n",
			       cpu, event->name, event->bytes, event->write_name,
			       event->write_bytes);
			return -EINVAL;
		}
		if (event->read_too.config && event->write.config) {
			pr_err("CPU%d: event %s is the sum of two, which leaves no counter for a write event: leave g_write_counter_id= out\n",
			       cpu, event->name);
			return -EINVAL;
		}
		if (mg_guard.combined && !counts_both(event)) {
			pr_err("CPU%d: event %s counts no writes, which the budget covers with combined=1: give g_write_counter_id=, or in g_read_counter_id= an event that counts both\n",
			       cpu, event->name);
			return -EINVAL;
		}
		if (!event->write.config || mg_guard.combined)
			mg_guard.resources = 1;
		known = true;
	}
	if (!known) {
		pr_err("none of the CPUs to regulate is online, so their event is unknown: give g_hw_type=, or bring one online\n");
		return -EINVAL;
	}
	return 0;
}

/**
 * mg_events_choose() - choose each core's event from the module's parameters
 * @hw_type: a name in the table, a raw code, or EVENT@FIRST-LAST,... with an event for each CPU;
 *	NULL or "auto" for the processors' own events
 * @read: a raw code that counts reads instead, or NULL
 * @write: a raw code or a name that counts writes, or EVENT@FIRST-LAST,..., or NULL
 * @bytes: traffic per event, or 0 for the table's value
 *
 * Also determines the bytes per event and the resources that all cores count. The caller prevents
 * CPU hotplug meanwhile.
 *
 * Return: 0 or a negative errno, with a message in the log that explains the error.
 */
int mg_events_choose(const char *hw_type, const char *read, const char *write,
		     unsigned int bytes)
{
	int err;

	writes_given = write;
	err = read ? raw_read(read) : named_or_own(hw_type);
	if (!err && write)
		err = given_writes(write);
	return err ?: agree(bytes);
}

/**
 * mg_event_of_core() - choose the event of a core that was offline when events were chosen
 * @core: online now; keeps its event if it has one, else gets the processor's own
 *
 * Return: 0 or a negative errno, with a message in the log that explains the error.
 */
int mg_event_of_core(struct mg_core *core)
{
	const struct mg_event given = core->event; /* from g_write_counter_id= */
	const struct mw_event *row;
	struct mg_event event;

	if (core->event.name)
		return 0;
	row = own_event(core->cpu);
	if (!row)
		return -EINVAL;
	event = event_of(row);
	if (given.write.config)
		take_write_event(&event, &given);
	if ((!mg_guard.bytes_given && event.bytes != mg_guard.bytes) ||
	    (!mg_guard.bytes_given && event.write_bytes && event.write_bytes != event.bytes) ||
	    (mg_counts_writes() && !event.write.config) ||
	    (event.read_too.config && event.write.config) ||
	    (mg_event_second(&event) && !static_key_enabled(&mg_two_events)) ||
	    (mg_guard.combined && !counts_both(&event))) {
		pr_err("CPU%u: event %s does not match the events of the other CPUs\n", core->cpu,
		       event.name);
		return -EINVAL;
	}
	mutex_lock(&mg_guard.lock);
	core->event = event;
	mutex_unlock(&mg_guard.lock);
	return 0;
}
