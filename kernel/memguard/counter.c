// SPDX-License-Identifier: GPL-2.0-only
/* One perf event on one CPU: counts, and interrupts when told to. */
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/module.h>

#include "memguard.h"

/* Possibly in NMI context: only note the time and ask for an interrupt. */
static void counter_overflowed(struct perf_event *event,
			       struct perf_sample_data *data, struct pt_regs *regs)
{
	struct mg_counter *counter = event->overflow_handler_context;

	counter->core->overflow_ns = ktime_get_mono_fast_ns();
	/* From 7.3 on perf stops an event that interrupts often, and loses counts. */
	event->hw.interrupts = 0;
	irq_work_queue(&counter->overflow);
}

static void counter_work(struct irq_work *work)
{
	mg_core_overflow(container_of(work, struct mg_counter, overflow));
}

/**
 * mg_counter_open() - create the counter's event, counting and unlimited
 * @counter: of a resource that all cores count; others stay without event
 * @cpu: where to count
 *
 * Return: 0, or the errno with which perf refused.
 */
int mg_counter_open(struct mg_counter *counter, unsigned int cpu)
{
	const struct mg_event *counted = &counter->core->event;
	struct perf_event_attr attr = {
		.type = counted->type,
		.config = counter->resource == MW_READ ? counted->read : counted->write,
		.size = sizeof(attr),
		.sample_period = MW_UNLIMITED,
		.pinned = 1,
		.exclude_kernel = mg_guard.user_only,
	};
	struct perf_event *event;

	counter->overflow = IRQ_WORK_INIT_HARD(counter_work);
	event = perf_event_create_kernel_counter(&attr, cpu, NULL,
						 counter_overflowed, counter);
	if (IS_ERR(event))
		return PTR_ERR(event);
	if (event->state != PERF_EVENT_STATE_ACTIVE) {
		/* Created, but every hardware counter is pinned by others. */
		perf_event_release_kernel(event);
		return -EBUSY;
	}
	if (event->pmu->capabilities & PERF_PMU_CAP_NO_INTERRUPT) {
		/* It counts, and nobody would be told that the budget is used up. */
		perf_event_release_kernel(event);
		return -EOPNOTSUPP;
	}
	counter->event = event;
	return 0;
}

/**
 * mg_counter_close() - give the event back; no overflow comes afterwards
 * @counter: opened or not
 */
void mg_counter_close(struct mg_counter *counter)
{
	if (!counter->event)
		return;
	perf_event_release_kernel(counter->event);
	irq_work_sync(&counter->overflow);
	counter->event = NULL;
}

/**
 * mg_counter_used() - events in this period so far
 * @counter: of this CPU, interrupts off
 *
 * Return: events; 0 without an event.
 */
u64 mg_counter_used(struct mg_counter *counter)
{
	struct perf_event *event = counter->event;

	if (!event)
		return 0;
	if (event->state == PERF_EVENT_STATE_ACTIVE)
		event->pmu->read(event);
	return local64_read(&event->count) - counter->begin;
}

/**
 * mg_counter_arm() - interrupt after so many more events
 * @counter: of this CPU, interrupts off
 * @events: from now on; MW_UNLIMITED is too far away to come
 *
 * perf has armed its next overflow before anybody hears of this one, so a new
 * distance counts only through stop, set and start with reload. A software
 * event's distance runs up from minus its length, a hardware event's down.
 * Clearing the interrupt count keeps perf from throttling the event itself.
 */
void mg_counter_arm(struct mg_counter *counter, u64 events)
{
	struct perf_event *event = counter->event;
	struct hw_perf_event *hwc;
	s64 left = (s64)events;

	if (!event || event->state != PERF_EVENT_STATE_ACTIVE)
		return;
	hwc = &event->hw;
	if (event->attr.type == PERF_TYPE_SOFTWARE)
		left = -left;
	event->pmu->stop(event, PERF_EF_UPDATE);
	hwc->interrupts = 0;
	hwc->sample_period = events;
	hwc->last_period = events;
	local64_set(&hwc->period_left, left);
	event->pmu->start(event, PERF_EF_RELOAD);
	counter->interrupts_at = local64_read(&event->count) + events;
}

/* A period may take so many times what the last one took before it ends early. */
#define SURE_SHIFT 2

/**
 * mg_counter_keep() - may the counter stay armed as it is for another period?
 * @counter: of this CPU, interrupts off, its period's begin is now
 * @used: events of the last period
 * @events: what it would be armed for now
 *
 * To arm it costs as much as a third of the period's timer. One that interrupts
 * earlier than it has to is armed then, so no event is lost by it; but it has to be
 * rare.
 *
 * Return: whether it interrupts in time, and most likely not in this period.
 */
bool mg_counter_keep(const struct mg_counter *counter, u64 used, u64 events)
{
	u64 left = counter->interrupts_at - counter->begin;

	return left <= events && left >= events >> 1 && used <= left >> SURE_SHIFT;
}

/**
 * mg_counter_lost() - is there an event that does not count?
 * @counter: opened or not
 *
 * A pinned event that loses its place in the PMU, to another pinned one or
 * after an error, is left in a state of error by perf.
 */
bool mg_counter_lost(const struct mg_counter *counter)
{
	return counter->event &&
	       READ_ONCE(counter->event->state) != PERF_EVENT_STATE_ACTIVE;
}

/**
 * mg_counter_mend() - have perf schedule a lost event again
 * @counter: opened or not; the caller may sleep
 *
 * Return: whether it is lost, and was not when this was last called.
 */
bool mg_counter_mend(struct mg_counter *counter)
{
	bool was_lost = counter->lost;

	counter->lost = mg_counter_lost(counter);
	if (!counter->lost)
		return false;
	perf_event_disable(counter->event);
	perf_event_enable(counter->event);
	return !was_lost;
}

/**
 * mg_counter_overshot() - note how far past its budget the core got
 * @counter: of this CPU, interrupts off
 * @events: counted past what was handed out, in a period with a throttle
 */
void mg_counter_overshot(struct mg_counter *counter, u64 events)
{
	unsigned int bucket = events ? ilog2(events) + 1 : 0;

	counter->overshoot[min(bucket, MG_BUCKETS - 1U)]++;
	if (events > counter->overshoot_max)
		counter->overshoot_max = events;
}
