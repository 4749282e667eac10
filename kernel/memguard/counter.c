// SPDX-License-Identifier: GPL-2.0-only
/* A perf event on one CPU, or two that share one budget: counts, and interrupts as armed. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/bits.h>
#include <linux/device.h>
#include <linux/gfp.h>
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/string.h>

#include "memguard.h"

/* What perf writes to the interrupt count of an event that it throttles: MAX_INTERRUPTS. */
#define PERF_THROTTLED (~0ULL)

/*
 * An event that interrupts more often than perf_event_max_sample_rate allows is stopped by perf,
 * until perf's tick finds the interrupt count of a throttled one. Since that count is cleared here,
 * the event has to start when it is armed. Up to Linux 6.15 the driver of an Arm core's PMU stops
 * it without a note in its state, after this handler. mg_event_rewind() relies on the state.
 */
static void note_throttled(const struct mg_counter *counter, struct perf_event *event)
{
	if (event->hw.interrupts == PERF_THROTTLED &&
	    counter->direct[event == counter->second])
		event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	event->hw.interrupts = 0;
}

/* This may be NMI context: only note the time and request an interrupt. */
static void counter_overflowed(struct perf_event *event,
			       struct perf_sample_data *data, struct pt_regs *regs)
{
	struct mg_counter *counter = event->overflow_handler_context;

	counter->core->overflow_ns = ktime_get_mono_fast_ns();
	note_throttled(counter, event);
	irq_work_queue(&counter->overflow);
}

static void counter_work(struct irq_work *work)
{
	mg_core_overflow(container_of(work, struct mg_counter, overflow));
}

/*
 * mg_event_arm() writes these fields, but perf's interface guarantees none of them. With a kernel
 * that keeps the distance elsewhere, the module would compile but never interrupt.
 */
static bool fields_are_as_expected(const struct perf_event *event)
{
	if (event->hw.sample_period == MW_UNLIMITED &&
	    event->hw.last_period == MW_UNLIMITED)
		return true;
	pr_err("this kernel's perf keeps the distance of an event elsewhere (sample_period %#llx, last_period %#llx), where the module cannot set it; use memwarden guard start --backend user\n",
	       event->hw.sample_period, event->hw.last_period);
	return false;
}

/* The bits in "config1:0-37,63", without the field's name. */
static u64 bits_of(char *ranges)
{
	u64 bits = 0;
	char *range;

	while ((range = strsep(&ranges, ","))) {
		unsigned int first, last;
		int count = sscanf(range, "%u-%u", &first, &last);

		if (count == 1)
			last = first;
		if (count >= 1 && first <= last && last < 64)
			bits |= GENMASK_ULL(last, first);
	}
	return bits;
}

/* The bits in one of the PMU's files "format", if it is of that field; @text is a page. */
static u64 bits_of_file(struct pmu *pmu, struct attribute *attribute, const char *field,
			char *text)
{
	struct device_attribute *file = container_of(attribute, struct device_attribute, attr);

	if (!file->show || file->show(pmu->dev, file, text) <= 0 || !strstarts(text, field))
		return 0;
	return bits_of(text + strlen(field));
}

/* The bits that these files of the PMU in sysfs have for a field; @text is a page. */
static u64 bits_of_groups(struct pmu *pmu, const struct attribute_group **groups,
			  const char *field, char *text)
{
	u64 bits = 0;

	for (; groups && *groups; groups++) {
		const struct attribute_group *group = *groups;

		if (!group->name || strcmp(group->name, "format"))
			continue;
		for (int i = 0; group->attrs && group->attrs[i]; i++)
			if (!group->is_visible ||
			    group->is_visible(&pmu->dev->kobj, group->attrs[i], i))
				bits |= bits_of_file(pmu, group->attrs[i], field, text);
	}
	return bits;
}

/* The bits that the PMU accepts in a field. Intel's offcore_rsp is among those that perf adds. */
static u64 field_bits(struct pmu *pmu, const char *field)
{
	char *text = (char *)get_zeroed_page(GFP_KERNEL);
	u64 bits = 0;

	if (text)
		bits = bits_of_groups(pmu, pmu->attr_groups, field, text) |
		       bits_of_groups(pmu, pmu->attr_update, field, text);
	free_page((unsigned long)text);
	return bits;
}

static bool lacks(struct pmu *pmu, const char *field, u64 value)
{
	return value && value & ~field_bits(pmu, field);
}

/*
 * Does the driver have a function that writes the event's counter, and is the counter one of 32 or
 * 64 bits? An Arm core's PMU is called armv8_cortex_a53 or the like, and is registered under its
 * driver's own string.
 */
static bool is_direct(const struct perf_event *event)
{
#ifdef CONFIG_ARM_PMU
	u32 type = event->attr.type;

	return (type == PERF_TYPE_HARDWARE || type == PERF_TYPE_HW_CACHE ||
		type == PERF_TYPE_RAW) &&
	       strstarts(event->pmu->name, "armv") &&
	       to_arm_pmu(event->pmu)->name == event->pmu->name &&
	       !(event->hw.flags & PERF_EVENT_FLAG_ARCH & ~ARMPMU_EVT_64BIT);
#else
	return false;
#endif
}

/*
 * The type with which perf finds the core's own PMU. PERF_TYPE_RAW reaches only the large cores of
 * a hybrid. perf's generic events work on each core type: an open one has the PMU's type.
 */
static u32 type_on(unsigned int cpu, const struct mg_code *code)
{
	u32 type = code->type;

#ifdef CONFIG_X86
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HARDWARE,
		.config = PERF_COUNT_HW_INSTRUCTIONS,
		.size = sizeof(attr),
		.disabled = 1,
	};
	struct perf_event *event;

	if (type != PERF_TYPE_RAW || !boot_cpu_has(X86_FEATURE_HYBRID_CPU))
		return type;
	event = perf_event_create_kernel_counter(&attr, cpu, NULL, NULL, NULL);
	if (IS_ERR(event))
		return type;
	type = event->pmu->type;
	perf_event_release_kernel(event);
#endif
	return type;
}

static struct perf_event *open_event(struct mg_counter *counter, unsigned int cpu,
				     const struct mg_code *code)
{
	struct perf_event_attr attr = {
		.type = type_on(cpu, code),
		.config = code->config,
		.config1 = code->config1,
		.config2 = code->config2,
		.size = sizeof(attr),
		.sample_period = MW_UNLIMITED,
		.pinned = 1,
		.exclude_kernel = mg_guard.user_only,
	};
	struct perf_event *event;
	int err;

	event = perf_event_create_kernel_counter(&attr, cpu, NULL,
						 counter_overflowed, counter);
	if (IS_ERR(event))
		return event;
	/* The event exists, but other pinned events occupy every hardware counter. */
	err = -EBUSY;
	if (event->state != PERF_EVENT_STATE_ACTIVE)
		goto release;
	/* The event counts, but no interrupt would report that the budget is used up. */
	err = -EOPNOTSUPP;
	if (event->pmu->capabilities & PERF_PMU_CAP_NO_INTERRUPT)
		goto release;
	err = -EPROTO;
	if (!fields_are_as_expected(event))
		goto release;
	if (lacks(event->pmu, "config1:", code->config1) ||
	    lacks(event->pmu, "config2:", code->config2)) {
		/* Some PMUs ignore a field that they lack. */
		pr_err("CPU%u: the PMU %s has no such field: see /sys/bus/event_source/devices/%s/format\n",
		       cpu, event->pmu->name, event->pmu->name);
		err = -EDOM;
		goto release;
	}
	return event;

release:
	perf_event_release_kernel(event);
	return ERR_PTR(err);
}

/**
 * mg_counter_open() - create the counter's event or events, counting and unlimited
 * @counter: of a resource that all cores count; other counters get no event
 * @cpu: where to count
 * @code: set to the event that is opened last, which is the refused one on failure
 *
 * Return: 0, or perf's errno. -EDOM and -EPROTO, with a message in the log, mean that perf would
 * accept the event but it would not work.
 */
int mg_counter_open(struct mg_counter *counter, unsigned int cpu,
		    const struct mg_code **code)
{
	const struct mg_event *counted = &counter->core->event;
	const struct mg_code *second = mg_event_second(counted);
	struct perf_event *event;

	counter->overflow = IRQ_WORK_INIT_HARD(counter_work);
	counter->split = (struct mw_split){};
	counter->lost = false;
	counter->logged = NULL;
	memset(counter->shared, 0, sizeof(counter->shared));
	*code = mg_event_code(counted, counter->resource);
	event = open_event(counter, cpu, *code);
	if (IS_ERR(event))
		return PTR_ERR(event);
	counter->event = event;
	counter->direct[0] = is_direct(event);
	if (!second || counter->resource != MW_READ)
		return 0;
	*code = second;
	event = open_event(counter, cpu, *code);
	if (IS_ERR(event)) {
		mg_counter_close(counter);
		return PTR_ERR(event);
	}
	counter->second = event;
	counter->direct[1] = is_direct(event);
	return 0;
}

/**
 * mg_counter_close() - release the events; no overflow comes afterwards
 * @counter: opened or not
 */
void mg_counter_close(struct mg_counter *counter)
{
	if (!counter->event)
		return;
	if (counter->second)
		perf_event_release_kernel(counter->second);
	perf_event_release_kernel(counter->event);
	irq_work_sync(&counter->overflow);
	counter->second = NULL;
	counter->event = NULL;
}

static u64 event_count(struct perf_event *event)
{
	if (event->state == PERF_EVENT_STATE_ACTIVE)
		event->pmu->read(event);
	return local64_read(&event->count);
}

/**
 * mg_counter_used() - events in this period so far
 * @counter: of this CPU, interrupts off
 *
 * Return: events, with two events their sum; 0 without an event.
 */
u64 mg_counter_used(struct mg_counter *counter)
{
	struct perf_event *event = counter->event;
	u64 count;

	if (!event)
		return 0;
	count = event_count(event);
	if (static_branch_unlikely(&mg_two_events) && counter->second)
		count += event_count(counter->second);
	return count - counter->begin;
}

/**
 * mg_counter_arm_both() - mg_counter_arm() for a counter with two events
 * @counter: of this CPU, interrupts off
 * @events: of their sum, from now on
 *
 * Each event is armed for a share, so one interrupts before the sum passes @events.
 */
void mg_counter_arm_both(struct mg_counter *counter, u64 events)
{
	struct perf_event *event[MW_SPLIT] = { counter->event, counter->second };
	u64 counted[MW_SPLIT], share[MW_SPLIT], sum = 0;
	bool lost = false;
	int i;

	for (i = 0; i < MW_SPLIT; i++) {
		u64 count = event_count(event[i]);

		counted[i] = count - counter->shared[i];
		counter->shared[i] = count;
	}
	mw_split_left(&counter->split, counted, events, share);
	for (i = 0; i < MW_SPLIT; i++) {
		if (event[i]->state != PERF_EVENT_STATE_ACTIVE)
			lost = true;
		else if (!counter->direct[i] || !mg_event_rewind(event[i], share[i]))
			mg_event_arm(event[i], share[i]);
		sum += local64_read(&event[i]->count);
	}
	/* A lost event returns with an old distance: mg_counter_keep() must not rely on it. */
	counter->interrupts_at = lost ? counter->begin - 1 : sum + events;
}

/* A period may use four times as much as the last one before it ends early. */
#define SURE_SHIFT 2

/**
 * mg_counter_keep() - may the counter stay armed as it is for another period?
 * @counter: of this CPU, interrupts off; its period begins now
 * @used: events of the last period
 * @events: what it would be armed for now
 *
 * Arming costs up to a third of the period's timer. A counter that interrupts earlier than it has
 * to is armed at that interrupt, so no event is lost; but such interrupts have to be rare.
 *
 * Return: true if it interrupts in time, and most likely not in this period.
 */
bool mg_counter_keep(const struct mg_counter *counter, u64 used, u64 events)
{
	u64 left = counter->interrupts_at - counter->begin;

	return left <= events && left >= events >> 1 && used <= left >> SURE_SHIFT;
}

static void mend(struct perf_event *event)
{
	if (!mg_event_lost(event))
		return;
	perf_event_disable(event);
	perf_event_enable(event);
}

static const char *name_of_lost(const struct mg_counter *counter)
{
	const struct mg_event *event = &counter->core->event;
	bool second = !mg_event_lost(counter->event);

	if (counter->resource == MW_READ && (!second || event->read_too.config))
		return event->name;
	return event->write_name ?: "raw";
}

/**
 * mg_counter_mend() - have perf schedule a lost event again
 * @counter: opened or not; the caller may sleep
 *
 * The log has a line when a loss begins and one when it ends, however long it lasts.
 */
void mg_counter_mend(struct mg_counter *counter)
{
	const char *name = name_of_lost(counter);

	if (mg_counter_lost(counter)) {
		/* A counter that is lost again and again must not fill the log. */
		if (!counter->lost && __ratelimit(&counter->losses)) {
			pr_warn("CPU%u: event %s has stopped counting, as another user has the PMU or it failed: the core is not regulated\n",
				counter->core->cpu, name);
			counter->logged = name;
		}
		mend(counter->event);
		mend(counter->second);
	}
	counter->lost = mg_counter_lost(counter);
	if (!counter->lost && counter->logged) {
		pr_info("CPU%u: event %s counts again: the core is regulated\n",
			counter->core->cpu, counter->logged);
		counter->logged = NULL;
	}
}

/**
 * mg_counter_average() - update the averages of events per period
 * @counter: of this CPU, interrupts off
 * @used: events in each of these periods, with MG_AVERAGE_SHIFT fraction bits
 * @periods: number of periods that have ended
 */
void mg_counter_average(struct mg_counter *counter, u64 used, u64 periods)
{
	static const int shift[MG_AVERAGES] = { 1, 4, 8 };
	u64 *average = counter->average;
	int i;

	if (likely(periods == 1)) {
		average[0] += (used >> 1) - (average[0] >> 1);
		average[1] += (used >> 4) - (average[1] >> 4);
		average[2] += (used >> 8) - (average[2] >> 8);
		return;
	}
	for (i = 0; i < MG_AVERAGES; i++) {
		if (periods >> shift[i])
			average[i] = used;
		else
			average[i] += (used >> shift[i]) - (average[i] >> shift[i]);
	}
}

/**
 * mg_counter_overshot() - record how far a core exceeded its budget
 * @counter: of this CPU, interrupts off
 * @events: counted past what was assigned, in a period with a throttle
 */
void mg_counter_overshot(struct mg_counter *counter, u64 events)
{
	unsigned int bucket = events ? ilog2(events) + 1 : 0;

	counter->overshoot[min(bucket, MG_BUCKETS - 1U)]++;
	if (events > counter->overshoot_max)
		counter->overshoot_max = events;
}
