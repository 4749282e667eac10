/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * memguard: per-core memory-bandwidth regulation.
 *
 * main.c      module parameters, hotplug, loading and unloading
 * clock.c     which period it is, and the budgets that hold in it
 * core.c      a core's period timer, overflow and kicks
 * steady.c    periods of a core that take no decision
 * throttle.c  the thread that holds a core
 * counter.c   the perf event that counts and interrupts
 * event.c     what each core counts
 * settings.c  budgets in every unit, period and modes: checked, then applied
 * parse.c     what people write, word by word (no kernel in it)
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
#include <linux/seqlock.h>
#include <linux/smp.h>

#include "parse.h"
#include "policy.h"
#include "split.h"

/* Bucket 0: no event too many; bucket k: 2^(k-1) .. 2^k - 1; last: the rest. */
#define MG_BUCKETS 24
/* Weights 1/2, 1/16 and 1/256 of the newest period. */
#define MG_AVERAGES 3
/* They are kept in 1/256 events. */
#define MG_AVERAGE_SHIFT 8
/* A throttled core's tasks run for so long in each period at least. */
#define MG_RUN_MIN_NS 2000ULL
/*
 * A core is far below its budget when each of the last LIGHT_PERIODS (core.c) took no
 * more than a 32nd of it; the chunk after which its counter interrupts is a 64th.
 * Every MG_LOOK_PERIODS a timer looks whether that counter still counts.
 */
#define MG_LIGHT_SHIFT 5
#define MG_CHUNK_SHIFT 6
#define MG_LOOK_PERIODS 64
/* No sequence count is odd when nothing is being written. */
#define MG_READ_ANEW 1U
#define MG_PERIOD_MIN_US 50
#define MG_PERIOD_MAX_US 1000000

/* struct mg_code - an event: perf's type and codes, of which the last two are 0 in most */
struct mg_code {
	u64 type;
	u64 config;
	u64 config1;
	u64 config2;
};

/* struct mg_event - what a core counts (event.c) */
struct mg_event {
	const char *name; /* NULL: not known before the core is online */
	struct mg_code read;
	struct mg_code write; /* no config: it has no such event */
	const char *write_name; /* NULL: the write event is known by its code */
	u32 write_bytes; /* memory traffic per write event; 0: as a read's */
	bool both; /* the read event counts writes, too */
	u32 bytes; /* memory traffic per event */
};

/* struct mg_counter - one resource of one core, counted (counter.c) */
struct mg_counter {
	struct perf_event *event; /* NULL: not regulated */
	struct perf_event *write_event; /* where one budget is of both, or NULL */
	struct irq_work overflow;
	struct mg_core *core;
	enum mw_resource resource;
	u64 begin; /* the event's count when the period began; of two events their sum */
	u64 interrupts_at; /* the count at which it interrupts; of two events at the latest */
	u64 mark; /* of a core that goes by chunks: when it was last looked at */
	u64 average[MG_AVERAGES]; /* events per period, in 1/256 */
	u64 own; /* what the end of a throttle takes of the budget */
	u64 tried_at; /* the event's count when the trial began */
	u64 released; /* for @own: when it was released */
	u64 held_at; /* for @runs_on: when it held the core */
	bool runs_on; /* counts while the core is halted: time, not traffic */
	bool stopped; /* its overflow stopped the core in this period */
	u64 held; /* used when the core was held in it; U64_MAX: it was not */
	u64 last; /* used in the last period that was begun with a decision */
	u64 whole; /* what it was armed for when the period began */
	bool near; /* of a steady core: most likely armed anew when a period begins */
	bool far; /* of a steady core: not counted before it has used a chunk */
	u64 passed_from; /* the count when the first of the core's passed periods began */
	bool lost; /* for mg_counter_mend() alone */
	struct mw_split split; /* how two events share the budget */
	u64 shared[MW_SPLIT]; /* their counts when it was shared last */
	u64 over_periods;
	u64 used_max; /* in one period, until @second_max began */
	u64 second_max; /* in one period of this second */
	u64 overshoot_max;
	u64 overshoot[MG_BUCKETS];
};

/* struct mg_stats - since loading or the last reset; times in ns */
struct mg_stats {
	u64 periods;
	u64 missed_periods;
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
 * struct mg_second - a core's totals when the present second began; of the
 * last whole one, its length (@since) and what happened in it
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
 * struct mg_core - a core under regulation; touched by its own CPU with
 * interrupts off, but for @reservation and @wanted (settings mutex), @budget
 * (clock_seq) and reading.
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
	atomic_t kicked; /* the kick is on its way */
	struct task_struct *thread;
	struct mg_event event;
	bool write_given; /* its write event is of a list in g_write_counter_id= */
	unsigned int cpu;
	bool regulated;
	bool stopping; /* its hotplug callback works on it: nobody else may */
	bool leaving; /* stopped, and not to be started before it is back */
	bool reset; /* the statistics are to be cleared */
	bool quiet; /* has no timer: it is idle, has no limit, or is far below */
	bool far_below; /* quiet, and not idle when it became so, with a limit */
	bool chunks; /* quiet, and told when it has used a chunk of its budget */
	u64 light; /* periods in a row that took no more than a 32nd of the budget */
	bool steady; /* the next period takes no decision, see steady.c */
	u64 begun; /* the number of the last period that took one */
	u64 steady_until; /* a period that begins later is begun as any other */
	u64 booked; /* the number of the period up to which the books are */
	bool pending; /* budgets are set that do not hold yet */
	bool limits_changed; /* a limit came or went with this period */
	bool hold; /* the throttle thread shall have the core */
	bool waiting; /* woken for that; it has not come to the core yet */
	bool holding; /* it has */
	bool leaving_hold; /* released; the thread has not left yet */
	bool deferred; /* used up, and held from @run_until on */
	bool trial; /* a throttle without need, see try_throttle() */
	bool tried; /* one has shown what a throttle takes */
	unsigned int clock_seq; /* of the look that the next five are from */
	u64 generation; /* of the clock, whose budgets hold */
	u64 number; /* of the period */
	u64 chunk_number; /* of that in which the present chunk began */
	u64 phase; /* when the clock was last set */
	u64 period_ns;
	u64 next; /* when the next period begins */
	u64 leave_ns_min; /* the fastest from release to the thread's leaving */
	u64 run_until; /* no throttle before */
	u64 mend_at; /* no second try to mend a counter before */
	u64 overflow_ns; /* when the last overflow interrupt came */
	u64 waits_since; /* the overflow for which the thread was woken */
	u64 throttled_since;
	u64 released_at;
	u64 best_effort_since;
};

/*
 * struct mg_clock - period number @number began at @phase; ns, monotonic. The
 * budgets of @generation hold from number @from on, before that the last ones.
 */
struct mg_clock {
	u64 number;
	u64 phase;
	u64 period_ns;
	u64 generation;
	u64 from;
};

/* struct mg_guard - what all cores share */
struct mg_guard {
	struct mw_policy policy;
	struct mutex lock; /* settings: one writer at a time */
	struct cpumask cpus; /* to regulate; all others are left alone */
	int resources; /* that have budgets: 1, or 2 with writes of their own */
	u32 bytes; /* memory traffic per event, on every core */
	bool bytes_given; /* by bytes_per_event=, whatever the table says */
	raw_spinlock_t clock_lock; /* clock: one writer at a time, in any context */
	seqcount_raw_spinlock_t clock_seq;
	struct mg_clock clock;
	u64 maxbw; /* guaranteed bandwidth, MiB/s */
	bool combined; /* one budget holds reads and writes together */
	bool user_only;
	bool poll; /* throttled cores spin instead of halting */
};

extern struct mg_guard mg_guard;
/* Some core's budget is counted by two events: all others shall not pay for that. */
DECLARE_STATIC_KEY_FALSE(mg_two_events);
DECLARE_PER_CPU(struct mg_core, mg_cores);

/* Those that are online, of the CPUs to regulate. */
#define for_each_mg_cpu(cpu) for_each_cpu_and(cpu, cpu_online_mask, &mg_guard.cpus)

/* Does every core have a budget for writes, too? */
static inline bool mg_counts_writes(void)
{
	return mg_guard.resources == MW_RESOURCES;
}

/**
 * mg_clock_step() - is it the next period, with the same settings?
 * @core: of this CPU, interrupts off; if so, number and next follow
 * @now: ns, monotonic
 *
 * Return: if not, nothing has changed, and mg_clock_read() tells.
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

/* The period that @core is in, those that were only noted among them. */
static inline u64 mg_epoch(const struct mg_core *core)
{
	return (core->policy.epoch + core->number - core->begun) & MW_EPOCH_MASK;
}

/* main.c */
void mg_mend_counters(void);

/* clock.c */
void mg_clock_read(struct mg_core *core, u64 now);
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
void mg_freshen(void);
int mg_watch_switches(void);
void mg_unwatch_switches(void);
void mg_core_overflow(struct mg_counter *counter);

/* steady.c */
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
bool mg_counter_mend(struct mg_counter *counter);
void mg_counter_arm_both(struct mg_counter *counter, u64 events);

/**
 * mg_event_arm() - interrupt after a number of further events
 * @event: of this CPU, interrupts off
 * @events: from now on; MW_UNLIMITED is too far away to come
 *
 * perf has armed its next overflow before anybody hears of this one, so a new
 * distance counts only through stop, set and start with reload. A software
 * event's distance runs up from minus its length, a hardware event's down.
 * Clearing the interrupt count keeps perf from throttling the event itself.
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
 * @events: as in mg_event_arm(); of two events, of their sum, and at the latest then
 */
static inline void mg_counter_arm(struct mg_counter *counter, u64 events)
{
	struct perf_event *event = counter->event;

	if (static_branch_unlikely(&mg_two_events) && counter->write_event) {
		mg_counter_arm_both(counter, events);
		return;
	}
	if (!event || event->state != PERF_EVENT_STATE_ACTIVE)
		return;
	mg_event_arm(event, events);
	counter->interrupts_at = local64_read(&event->count) + events;
}

static inline bool mg_event_lost(const struct perf_event *event)
{
	return event && READ_ONCE(event->state) != PERF_EVENT_STATE_ACTIVE;
}

/**
 * mg_counter_lost() - is there an event that does not count?
 * @counter: opened or not
 *
 * A pinned event that loses its place in the PMU, to another pinned one or
 * after an error, is left in a state of error by perf.
 */
static inline bool mg_counter_lost(const struct mg_counter *counter)
{
	if (static_branch_unlikely(&mg_two_events) &&
	    mg_event_lost(counter->write_event))
		return true;
	return mg_event_lost(counter->event);
}

/* event.c */
int mg_events_choose(const char *hw_type, const char *read, const char *write,
		     unsigned int bytes);
int mg_event_of_core(struct mg_core *core);
const struct mg_code *mg_event_code(const struct mg_event *event, enum mw_resource resource);

/* settings.c: 0 or a negative errno with nothing changed; *why says what */
int mg_set_limits(enum mw_resource resource, const char *text, const char **why);
int mg_set_shares(const char *text, const char **why);
int mg_set_control(const char *text, const char **why);
void mg_reset_stats(void);
u64 mg_mb(u64 events);
u64 mg_guaranteed_mb(enum mw_resource resource);
u64 mg_least_events(enum mw_resource resource);

/* files.c */
int mg_files_create(void);
void mg_files_remove(void);

#endif /* MEMGUARD_H */
