/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * memguard: per-core memory-bandwidth regulation.
 *
 * main.c      module parameters, hotplug, loading and unloading
 * clock.c     the current period, and the budgets in force
 * core.c      a core's period timer, overflow and kicks
 * steady.c    periods of a core that need no decision
 * throttle.c  the thread that holds a core
 * counter.c   the perf event that counts and interrupts
 * event.c     which event each core counts
 * settings.c  budgets in every unit, period and modes: checked, then applied
 * parse.c     parsing of what is written to the files (no kernel interfaces)
 * files.c     the files
 * policy.c    the decisions (policy/)
 * split.c     how two counters share one budget (policy/)
 */
#ifndef MEMGUARD_H
#define MEMGUARD_H

#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/jump_label.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/perf_event.h>
#include <linux/ratelimit.h>
#include <linux/seqlock.h>
#include <linux/smp.h>
#ifdef CONFIG_ARM_PMU
#include <linux/perf/arm_pmu.h>
#endif

#include "parse.h"
#include "policy.h"
#include "split.h"

/* Bucket 0: no overshoot; bucket k: 2^(k-1) to 2^k - 1 events; last bucket: all above. */
#define MG_BUCKETS 24
/* The newest period has weight 1/2, 1/16 or 1/256. */
#define MG_AVERAGES 3
/* Averages are stored in 1/256 events. */
#define MG_AVERAGE_SHIFT 8
/* The minimum time that a throttled core's tasks run in each period. */
#define MG_RUN_MIN_NS 2000ULL
/*
 * A core is far below its budget when each of the last LIGHT_PERIODS (core.c) used no more than
 * 1/32 of it. Its counter then interrupts after a chunk, 1/64 of the budget. Every MG_LOOK_PERIODS
 * a timer checks whether that counter still counts.
 */
#define MG_LIGHT_SHIFT 5
#define MG_CHUNK_SHIFT 6
#define MG_LOOK_PERIODS 64
/* Never a stable sequence count, which is even: the core reads the clock again. */
#define MG_READ_ANEW 1U
#define MG_PERIOD_MIN_US 50
#define MG_PERIOD_MAX_US 1000000

/* struct mg_code - an event in perf's terms: type and codes; config1 and config2 are usually 0 */
struct mg_code {
	u64 type;
	u64 config;
	u64 config1;
	u64 config2;
};

/* struct mg_event - the event that a core counts (event.c) */
struct mg_event {
	const char *name; /* NULL: unknown until the core is online */
	struct mg_code read;
	struct mg_code read_too; /* reads that @read does not count; config is 0: none */
	struct mg_code write; /* config is 0: no such event */
	const char *write_name; /* NULL: the write event has only a code */
	u32 write_bytes; /* memory traffic per write event; 0: same as a read event */
	bool both; /* the read event also counts writes */
	u32 bytes; /* memory traffic per event */
};

/* struct mg_counter - the counter of one resource of one core (counter.c) */
struct mg_counter {
	struct perf_event *event; /* NULL: not regulated */
	struct perf_event *second; /* the second event that counts its budget, or NULL */
	bool direct[MW_SPLIT]; /* of these events: mg_event_rewind() may be tried */
	struct irq_work overflow;
	struct mg_core *core;
	enum mw_resource resource;
	u64 begin; /* the count at the start of the period; with two events their sum */
	u64 interrupts_at; /* the count at which it interrupts; with two events the latest */
	u64 mark; /* of a core that is watched by chunks: the count at the last look */
	u64 average[MG_AVERAGES]; /* events per period, in 1/256 */
	u64 own; /* events that the end of a throttle uses */
	u64 tried_at; /* the count at the start of the trial */
	u64 released; /* for @own: the count at the release */
	u64 held_at; /* for @runs_on: the count when the thread held the core */
	bool runs_on; /* counts while the core is halted: time, not traffic */
	bool stopped; /* its overflow stopped the core in this period */
	u64 held; /* used when the core was held in the period; U64_MAX: it was not */
	u64 last; /* used in the last period that began with a decision */
	u64 whole; /* events that it was armed for at the start of the period */
	bool near; /* of a steady core: armed anew when a period begins */
	bool far; /* of a steady core: not read until it has used a chunk */
	u64 burst; /* of a steady core: used in the last period if that exceeded it, or 0 */
	u64 passed_from; /* the count when the first of the core's passed periods began */
	bool lost; /* at the end of the last mg_counter_mend() */
	const char *logged; /* the lost event in the log whose return is not there yet, or NULL */
	struct ratelimit_state losses; /* that the log has */
	struct mw_split split; /* how the two events share the budget */
	u64 shared[MW_SPLIT]; /* their counts at the last split */
	u64 unlimited; /* events used in periods without a budget, of all that were used */
	u64 over_periods;
	u64 used_max; /* most in one period before the second of @second_max */
	u64 second_max; /* most in one period of this second */
	u64 overshoot_max;
	u64 overshoot[MG_BUCKETS];
};

/* struct mg_stats - figures since loading or the last reset; times in ns */
struct mg_stats {
	u64 periods;
	u64 missed_periods;
	u64 elapsed_ns; /* length of the periods in these figures */
	u64 late_max;
	u64 late_sum;
	u64 overflows;
	u64 throttled_periods;
	u64 throttled_ns;
	u64 best_effort_periods;
	u64 best_effort_ns;
	u64 throttle_latency_max;
	u64 release_latency_max;
	u64 unregulated_periods;
};

/*
 * struct mg_second - a core's totals at the start of the current second. For the last whole second:
 * its length (@since) and what happened in it.
 */
struct mg_second {
	u64 since;
	u64 periods;
	u64 throttled_ns;
	u64 used[MW_RESOURCES];
	u64 assigned[MW_RESOURCES];
	u64 used_max[MW_RESOURCES];
};

/*
 * struct mg_core - a core under regulation. Only its own CPU accesses it, with interrupts off;
 * exceptions are @reservation and @wanted (settings mutex), @budget (clock_seq) and reads of
 * figures.
 */
struct mg_core {
	struct mw_core policy;
	struct mg_counter counter[MW_RESOURCES];
	struct mg_reservation reservation[MW_RESOURCES];
	u64 wanted[MW_RESOURCES]; /* events per period, as last set */
	u64 budget[2][MW_RESOURCES]; /* by generation of the clock */
	struct mg_stats stats;
	struct mg_second second;
	struct mg_second last_second;
	struct hrtimer timer;
	call_single_data_t kick;
	atomic_t kicked; /* a kick is on its way */
	struct task_struct *thread;
	struct mg_event event;
	bool write_given; /* its write event comes from a list in g_write_counter_id= */
	unsigned int cpu;
	bool regulated;
	bool stopping; /* its hotplug callback is using it; no other code may */
	bool leaving; /* stopped; must not start before it is online again */
	bool reset; /* clear the statistics */
	bool quiet; /* has no timer: it is idle, has no limit, or is far below its budget */
	bool far_below; /* quiet, has a limit, and was not idle when it became quiet */
	bool chunks; /* quiet, and interrupted after each chunk of its budget */
	u64 light; /* consecutive periods that used no more than 1/32 of the budget */
	bool steady; /* the next period needs no decision, see steady.c */
	u64 begun; /* the number of the last period that began with a decision */
	u64 steady_until; /* from this time on, periods begin with a decision */
	u64 booked; /* the number of the last period in the books */
	u64 timed; /* the time up to which @stats.elapsed_ns counts */
	bool pending; /* budgets are set that are not yet in force */
	bool limits_changed; /* a limit was added or removed with this period */
	bool period_changed; /* this period has another length than the last one */
	bool hold; /* the throttle thread shall hold the core */
	bool waiting; /* the thread is woken but does not run yet */
	bool holding; /* the thread holds the core */
	bool leaving_hold; /* released, but the thread has not left yet */
	bool deferred; /* budget used up; the throttle is due at @run_until */
	bool trial; /* a throttle for measurement, see try_throttle() */
	bool tried; /* a trial has shown what a throttle uses */
	unsigned int waits_left; /* how often the trial may still wait for its thread */
	unsigned int clock_seq; /* sequence count of the read of the clock fields below */
	u64 generation; /* of the clock; its budgets are in force */
	u64 number; /* of the current period */
	u64 chunk_number; /* of the period in which the current chunk began */
	u64 phase; /* when the clock was last set */
	u64 period_ns;
	u64 next; /* when the next period begins */
	u64 leave_ns_min; /* the shortest time from release until the thread has left */
	u64 run_until; /* no throttle before this time */
	u64 mend_at; /* no further attempt to mend a counter before this time */
	u64 overflow_ns; /* when the last overflow interrupt came */
	u64 waits_since; /* the overflow for which the thread was woken */
	u64 throttled_since;
	u64 released_at;
	u64 best_effort_since;
};

/*
 * struct mg_clock - period @number began at @phase; ns, monotonic. The budgets of @generation are
 * in force from period @from on, and those of the previous generation from @previous_from on.
 */
struct mg_clock {
	u64 number;
	u64 phase;
	u64 period_ns;
	u64 generation;
	u64 from;
	u64 previous_from;
};

/* On the policy's circle of periods, the largest possible distance. */
#define MG_HALF_A_CIRCLE ((MW_EPOCH_MASK + 1) / 2)

/* struct mg_guard - state that all cores share */
struct mg_guard {
	struct mw_policy policy;
	struct mutex lock; /* serialises changes of settings */
	struct cpumask cpus; /* CPUs to regulate; all others are left alone */
	int resources; /* resources with budgets: 1, or 2 with a separate budget for writes */
	u32 bytes; /* memory traffic per event, the same on every core */
	bool bytes_given; /* bytes_per_event= overrides the table */
	raw_spinlock_t clock_lock; /* serialises writers of the clock, in any context */
	seqcount_raw_spinlock_t clock_seq;
	struct mg_clock clock;
	u64 maxbw; /* guaranteed bandwidth, MiB/s */
	bool combined; /* one budget covers reads and writes */
	bool user_only;
	bool poll; /* throttled cores spin instead of halting */
};

extern struct mg_guard mg_guard;
/* Two events count some core's budget. The static key spares other configurations the cost. */
DECLARE_STATIC_KEY_FALSE(mg_two_events);
DECLARE_PER_CPU(struct mg_core, mg_cores);

/* The online CPUs among those to regulate. */
#define for_each_mg_cpu(cpu) for_each_cpu_and(cpu, cpu_online_mask, &mg_guard.cpus)

/* Does every core have a separate budget for writes? */
static inline bool mg_counts_writes(void)
{
	return mg_guard.resources == MW_RESOURCES;
}

/**
 * mg_clock_step() - does the next period begin, with unchanged settings?
 * @core: of this CPU, interrupts off; if true, @number and @next of struct mg_core advance
 * @now: ns, monotonic
 *
 * Return: if false, nothing has changed, and mg_clock_read() has to read the clock.
 */
static inline bool mg_clock_step(struct mg_core *core, u64 now)
{
	if (unlikely(read_seqcount_begin(&mg_guard.clock_seq) != core->clock_seq ||
		     now - core->next >= core->period_ns))
		return false;
	core->number++;
	core->next += core->period_ns;
	return true;
}

/* The period that @core is in, including periods that were only noted (steady.c). */
static inline u64 mg_epoch(const struct mg_core *core)
{
	return (core->policy.epoch + core->number - core->begun) & MW_EPOCH_MASK;
}

/* main.c */
void mg_mend_counters(void);

/* clock.c */
void mg_clock_read(struct mg_core *core, u64 now);
void mg_clock_joined(struct mg_core *core, u64 now);
u64 mg_clock_phase(void);
void mg_clock_restart(u64 epoch, u64 now);
void mg_clock_set_budgets(void);
void mg_clock_set_period(u64 period_ns);

/* core.c */
bool mg_sharing(void);
void mg_cores_init(void);
int mg_core_start(unsigned int cpu);
void mg_core_stop(unsigned int cpu);
bool mg_core_is_idle(unsigned int cpu);
void mg_core_close(unsigned int cpu);
void mg_kick_all(void);
void mg_free_all(void);
void mg_freshen(void);
void mg_core_copy(unsigned int cpu, struct mg_core *copy);
int mg_watch_switches(void);
void mg_unwatch_switches(void);
void mg_core_overflow(struct mg_counter *counter);

/* steady.c */
void mg_book_time(struct mg_core *core, u64 until);
bool mg_pass_period(struct mg_core *core, u64 now);
void mg_book_passed(struct mg_core *core);
void mg_begin_steady(struct mg_core *core);

/* throttle.c */
int mg_throttle_create(struct mg_core *core);
void mg_throttle_destroy(struct mg_core *core);
void mg_throttle(struct mg_core *core);
void mg_unthrottle(struct mg_core *core, u64 now);
void mg_throttle_arrived(struct mg_core *core);

/* counter.c */
int mg_counter_open(struct mg_counter *counter, unsigned int cpu,
		    const struct mg_code **code);
void mg_counter_close(struct mg_counter *counter);
u64 mg_counter_used(struct mg_counter *counter);
bool mg_counter_keep(const struct mg_counter *counter, u64 used, u64 events);
void mg_counter_average(struct mg_counter *counter, u64 used, u64 periods);
void mg_counter_overshot(struct mg_counter *counter, u64 events);
void mg_counter_mend(struct mg_counter *counter);
void mg_counter_arm_both(struct mg_counter *counter, u64 events);

/*
 * How far an overflow must be away while the counter is written: more events than can happen
 * between the two writes of mg_event_rewind().
 */
#define MG_REWIND_MARGIN 256

/**
 * mg_event_rewind() - mg_event_arm() without a stop of the counter
 * @event: of this CPU, interrupts off; of an Arm core's PMU
 * @events: from now on
 *
 * perf's interface lets a driver write its counter only when it starts the event. Stopping and
 * starting takes 460 instructions on arm64, and this 190. With an overflow that is about to come,
 * perf's interrupt, if it is an NMI, could find the counter written and @prev_count not.
 *
 * Return: false if the counter has to be stopped first; then nothing has changed but the count.
 */
static inline bool mg_event_rewind(struct perf_event *event, u64 events)
{
#ifdef CONFIG_ARM_PMU
	struct hw_perf_event *hwc = &event->hw;
	u64 width = hwc->flags & ARMPMU_EVT_64BIT ? U64_MAX : U32_MAX;

	if (events > S32_MAX || hwc->state)
		return false;
	event->pmu->read(event);
	if (local64_read(&hwc->period_left) < MG_REWIND_MARGIN)
		return false;
	hwc->interrupts = 0;
	hwc->sample_period = events;
	hwc->last_period = events;
	local64_set(&hwc->period_left, (s64)events);
	local64_set(&hwc->prev_count, -events);
	to_arm_pmu(event->pmu)->write_counter(event, -events & width);
	return true;
#else
	return false;
#endif
}

/**
 * mg_event_arm() - interrupt after a number of further events
 * @event: of this CPU, interrupts off
 * @events: from now on; MW_UNLIMITED is too far away to be reached
 *
 * When a handler runs, perf has already armed the event's next overflow. So a new distance takes
 * effect only through stop, set and start with reload. A software event counts up from minus the
 * distance, a hardware event counts the distance down. Clearing the interrupt count keeps perf from
 * throttling the event itself.
 */
static inline void mg_event_arm(struct perf_event *event, u64 events)
{
	struct hw_perf_event *hwc = &event->hw;
	s64 left = (s64)events;

	if (event->attr.type == PERF_TYPE_SOFTWARE)
		left = -left;
	event->pmu->stop(event, PERF_EF_UPDATE);
	hwc->interrupts = 0;
	hwc->sample_period = events;
	hwc->last_period = events;
	local64_set(&hwc->period_left, left);
	event->pmu->start(event, PERF_EF_RELOAD);
}

/**
 * mg_counter_arm() - interrupt after a number of further events
 * @counter: of this CPU, interrupts off
 * @events: as in mg_event_arm(); with two events, of their sum, and one interrupts by then
 */
static inline void mg_counter_arm(struct mg_counter *counter, u64 events)
{
	struct perf_event *event = counter->event;

	if (static_branch_unlikely(&mg_two_events) && counter->second) {
		mg_counter_arm_both(counter, events);
		return;
	}
	if (!event || event->state != PERF_EVENT_STATE_ACTIVE)
		return;
	if (!counter->direct[0] || !mg_event_rewind(event, events))
		mg_event_arm(event, events);
	counter->interrupts_at = local64_read(&event->count) + events;
}

static inline bool mg_event_lost(const struct perf_event *event)
{
	return event && READ_ONCE(event->state) != PERF_EVENT_STATE_ACTIVE;
}

/**
 * mg_counter_lost() - does one of the counter's events fail to count?
 * @counter: opened or not
 *
 * When a pinned event loses its place in the PMU, to another pinned event or after an error, perf
 * leaves it in an error state.
 */
static inline bool mg_counter_lost(const struct mg_counter *counter)
{
	if (static_branch_unlikely(&mg_two_events) &&
	    mg_event_lost(counter->second))
		return true;
	return mg_event_lost(counter->event);
}

/* event.c */
int mg_events_choose(const char *hw_type, const char *read, const char *write,
		     unsigned int bytes);
bool mg_two_events_chosen(void);
int mg_event_of_core(struct mg_core *core);
const struct mg_code *mg_event_code(const struct mg_event *event, enum mw_resource resource);
const struct mg_code *mg_event_second(const struct mg_event *event);

/* settings.c: return 0, or a negative errno with nothing changed; *why then gives the reason */
int mg_set_limits(enum mw_resource resource, const char *text, const char **why);
int mg_set_shares(const char *text, const char **why);
int mg_set_control(const char *text, const char **why);
void mg_reset_stats(void);
u64 mg_mb(u64 events);
u64 mg_guaranteed_mb(enum mw_resource resource);
u64 mg_least_events(enum mw_resource resource);
void mg_warn_of_small_budgets(const struct mg_core *core);

/* files.c */
int mg_files_create(void);
void mg_files_remove(void);

#endif /* MEMGUARD_H */
