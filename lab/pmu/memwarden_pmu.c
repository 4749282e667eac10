// SPDX-License-Identifier: GPL-2.0-only
/*
 * memwarden_pmu: a PMU whose counter can be taken away.
 *
 * The raw event 0xfa11 counts nanoseconds, or as many events in each as the parameter `per_ns`
 * says. Its overflow never interrupts. While the parameter `taken` is set, no event gets a
 * counter. An event also loses its counter then if perf reschedules it, as perf does when
 * another event of this PMU is added.
 */
#include <linux/module.h>
#include <linux/perf_event.h>
#include <linux/sched/clock.h>

#define EVENT 0xfa11

static bool taken;
module_param(taken, bool, 0644);
MODULE_PARM_DESC(taken, "no event gets a counter");

static unsigned int per_ns = 1;
module_param(per_ns, uint, 0644);
MODULE_PARM_DESC(per_ns, "events per nanosecond, from the next read on (default 1)");

static int event_init(struct perf_event *event)
{
	if (event->attr.type != PERF_TYPE_RAW || event->attr.config != EVENT)
		return -ENOENT;
	return event->cpu < 0 ? -EINVAL : 0;
}

static void event_read(struct perf_event *event)
{
	u64 now = local_clock();
	u64 passed = now - local64_xchg(&event->hw.prev_count, now);

	local64_add(passed * READ_ONCE(per_ns), &event->count);
}

static void event_start(struct perf_event *event, int flags)
{
	local64_set(&event->hw.prev_count, local_clock());
}

static void event_stop(struct perf_event *event, int flags)
{
	if (flags & PERF_EF_UPDATE)
		event_read(event);
}

static int event_add(struct perf_event *event, int flags)
{
	if (READ_ONCE(taken))
		return -EAGAIN;
	if (flags & PERF_EF_START)
		event_start(event, flags);
	return 0;
}

static void event_del(struct perf_event *event, int flags)
{
	event_stop(event, PERF_EF_UPDATE);
}

static struct pmu pmu = {
	.module = THIS_MODULE,
	.task_ctx_nr = perf_invalid_context,
	.event_init = event_init,
	.add = event_add,
	.del = event_del,
	.start = event_start,
	.stop = event_stop,
	.read = event_read,
};

static int __init pmu_begin(void)
{
	return perf_pmu_register(&pmu, "memwarden", -1);
}

static void __exit pmu_end(void)
{
	perf_pmu_unregister(&pmu);
}

module_init(pmu_begin);
module_exit(pmu_end);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("A PMU whose counter can be taken away");
MODULE_AUTHOR("The memwarden authors");
