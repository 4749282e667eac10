// SPDX-License-Identifier: GPL-2.0-only
/*
 * One regulated core: its period timer, its overflow, and the kick by which another core reports a
 * change. All code here runs on the core's own CPU. policy/ takes the decisions, throttle.c holds a
 * core, and clock.c tells all cores the current period. Periods that need no decision are in
 * steady.c.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/bits.h>
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/tracepoint.h>
#include <trace/events/sched.h>

#include "compat.h"
#include "memguard.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

DEFINE_PER_CPU(struct mg_core, mg_cores);

/*
 * A core is far below its budget after LIGHT_PERIODS periods that used almost nothing. This ends
 * when a chunk of the budget lasts less than CHUNK_PERIODS periods.
 */
#define LIGHT_PERIODS 16ULL
#define CHUNK_PERIODS 4

static bool core_is_idle(void)
{
	return is_idle_task(current);
}

/* ---- carrying out an action ---- */

/*
 * A call must not be queued again before it has begun. So only the core that finds no pending kick
 * queues it. A pending kick has not looked yet, and will see what its sender did before.
 */
static void kick(struct mg_core *core)
{
	int err;

	if (atomic_xchg(&core->kicked, 1))
		return;
	err = smp_call_function_single_async(core->cpu, &core->kick);
	/* -EBUSY: it was queued twice. Two senders at once would corrupt the CPU's queue. */
	WARN_ON_ONCE(err == -EBUSY);
	if (err)
		atomic_set(&core->kicked, 0);
}

static void kick_others(struct mg_core *core)
{
	int cpu;

	for_each_mg_cpu(cpu) {
		struct mg_core *other = &per_cpu(mg_cores, cpu);

		if (other != core && READ_ONCE(other->regulated))
			kick(other);
	}
}

static void carry_out(struct mg_core *core, enum mw_action action, u64 now)
{
	/* Other cores may be ahead: this is the period that is shared or that begins. */
	u64 epoch = mw_census_read(&mg_guard.policy).epoch;

	switch (action) {
	case MW_CONTINUE:
	case MW_RUN:
		break;
	case MW_THROTTLE:
		/* The thread has not run since a trial: the wait for this throttle begins now. */
		if (unlikely(core->trial)) {
			core->trial = false;
			core->waiting = false;
		}
		core->stats.throttled_periods++;
		core->throttled_since = now;
		mg_throttle(core);
		break;
	case MW_RELEASE_ALL:
		trace_best_effort(epoch, MW_SPARE);
		kick_others(core);
		break;
	case MW_NEW_PERIOD:
		trace_best_effort(epoch, MW_PROPORTIONAL);
		mg_clock_restart(epoch, now);
		kick_others(core);
		break;
	}
}

static void arm_counters(struct mg_core *core)
{
	int r;

	for (r = 0; r < mg_guard.resources; r++)
		mg_counter_arm(&core->counter[r],
			       core->policy.throttled ?
				       MW_UNLIMITED :
				       mw_until_overflow(&core->policy, r));
}

/* At the start of a period. next_look() arms the counters of a core that is watched by chunks. */
static void arm_anew(struct mg_core *core, const u64 *used)
{
	int r;

	for (r = 0; r < mg_guard.resources; r++) {
		u64 events = mw_until_overflow(&core->policy, r);

		core->counter[r].whole = events;
		if (!core->chunks && !mg_counter_keep(&core->counter[r], used[r], events))
			mg_counter_arm(&core->counter[r], events);
	}
}

/* In the middle of a period. */
static void count_and_arm(struct mg_core *core)
{
	int r;

	for (r = 0; r < mg_guard.resources; r++)
		mw_counted(&core->policy, r, mg_counter_used(&core->counter[r]));
	arm_counters(core);
}

static void release(struct mg_core *core, u64 now)
{
	core->stats.throttled_ns += now - core->throttled_since;
	mg_unthrottle(core, now);
}

/*
 * After a release the thread gives the core back; events until it has left belong to no task. If
 * the thread has not run yet, tasks keep running and are charged.
 */
static bool gives_back(const struct mg_core *core)
{
	return core->leaving_hold && !core->waiting;
}

/* Does this period repay what earlier periods used? */
static bool owes(const struct mg_core *core)
{
	int r;

	for (r = 0; r < mg_guard.resources; r++)
		if (core->policy.account[r].repaid)
			return true;
	return false;
}

/*
 * However small the budget, a task runs at least MG_RUN_MIN_NS, and at least the shortest time that
 * the thread takes to leave. So a task that holds a lock, or is an RCU reader, makes progress in
 * every period.
 */
static void let_run(struct mg_core *core, u64 now)
{
	core->run_until = now + clamp(core->leave_ns_min, MG_RUN_MIN_NS,
				      core->period_ns / 8);
}

/* Best effort lasts until the period ends, whatever the counter says. */
static void book_best_effort(struct mg_core *core, u64 now)
{
	core->stats.best_effort_periods++;
	core->best_effort_since = now;
}

/* ---- a period's books ---- */

static void clear_stats(struct mg_core *core, u64 now)
{
	int r;

	memset(&core->stats, 0, sizeof(core->stats));
	memset(&core->last_second, 0, sizeof(core->last_second));
	core->second = (struct mg_second){ .since = now };
	core->timed = now;
	for (r = 0; r < MW_RESOURCES; r++) {
		struct mw_account *account = &core->policy.account[r];
		struct mg_counter *counter = &core->counter[r];

		account->total_used = 0;
		account->total_assigned = 0;
		account->total_donated = 0;
		account->total_reclaimed = 0;
		account->reclaim_errors = 0;
		counter->unlimited = 0;
		counter->over_periods = 0;
		counter->used_max = 0;
		counter->second_max = 0;
		counter->overshoot_max = 0;
		memset(counter->overshoot, 0, sizeof(counter->overshoot));
	}
	WRITE_ONCE(core->reset, false);
}

/*
 * Events that are counted while the core is held exceed its budget, too. So the books are closed
 * when the period ends, not when the throttle takes hold.
 */
static void book_stop(struct mg_core *core, enum mw_resource r, u64 used,
		      u64 assigned, u64 allowed)
{
	struct mg_counter *counter = &core->counter[r];

	if (counter->stopped)
		mg_counter_overshot(counter,
				    used > assigned ? used - assigned : 0);
	if (counter->stopped && !counter->runs_on)
		mw_settle_stop(&core->policy, r, used, counter->held, allowed);
	else
		mw_owe(&core->policy, r, used, counter->held, allowed);
	counter->stopped = false;
}

/*
 * The period ended without a stop. If it was exceeded, then its overflow, or the timer of a
 * deferred throttle, came too late: where the counter's interrupt is not local to the core, the
 * timer's may come first. @missed further periods have passed with it.
 */
static void book_unstopped(struct mg_core *core, enum mw_resource r, u64 used,
			   u64 allowed, u64 missed)
{
	struct mw_account *account = &core->policy.account[r];

	if (likely(used <= allowed))
		return;
	/* It is unknown how many of the missed periods had the old budget. */
	allowed += min(missed, MW_EPOCH_MASK) *
		   min(account->budget, mw_load(&account->next_budget));
	mw_owe(&core->policy, r, used, used, allowed);
}

/* The same for a period that was only noted (steady.c): it had the whole budget. */
static void book_burst(struct mg_core *core, enum mw_resource r)
{
	struct mg_counter *counter = &core->counter[r];

	if (likely(!counter->burst))
		return;
	mw_owe(&core->policy, r, counter->burst, counter->burst,
	       core->policy.account[r].budget);
	counter->burst = 0;
}

/* Is the core's use known only up to the last mark? */
static bool by_chunks(const struct mg_core *core, enum mw_resource r)
{
	return core->chunks && core->policy.account[r].budget != MW_UNLIMITED;
}

/* If the counter was not read in each of the periods, @used is the sum over all @since periods. */
static void average(struct mg_counter *counter, u64 used, u64 since, u64 periods)
{
	if (counter->far)
		periods = max(since, 1ULL);
	counter->far = false;
	used <<= MG_AVERAGE_SHIFT;
	/* @periods may be 0: another core may have seen the next period begin first. */
	if (unlikely(periods > 1))
		used = div64_u64(used, periods);
	counter->last = used >> MG_AVERAGE_SHIFT;
	mg_counter_average(counter, used, periods);
}

static void book_resource(struct mg_core *core, enum mw_resource r, u64 used,
			  u64 assigned, u64 resting, u64 periods, bool excused)
{
	struct mg_counter *counter = &core->counter[r];
	bool over = used > assigned;
	u64 most = used;

	if (used > core->policy.account[r].budget >> MG_LIGHT_SHIFT ||
	    core->policy.account[r].repaid)
		core->light = 0;
	if (unlikely(periods > 1)) {
		/* The core had no timer: it was idle, had no limit, or was far below its budget. */
		over = false;
		core->policy.account[r].total_assigned += (periods - 1) * resting;
		if (!by_chunks(core, r))
			most = counter->last;
	}
	if (most > counter->second_max)
		counter->second_max = most;
	if (unlikely(over) && !excused && !mw_load(&core->policy.rt))
		counter->over_periods++;
}

static void begin_second(struct mg_core *core, u64 now)
{
	struct mg_second *second = &core->second;
	int r;

	second->since = now;
	second->periods = core->stats.periods;
	second->throttled_ns = core->stats.throttled_ns;
	for (r = 0; r < MW_RESOURCES; r++) {
		const struct mw_account *account = &core->policy.account[r];
		struct mg_counter *counter = &core->counter[r];

		second->used[r] = account->total_used;
		second->assigned[r] = account->total_assigned;
		counter->used_max = max(counter->used_max, counter->second_max);
		counter->second_max = 0;
	}
}

static void book_second(struct mg_core *core, u64 now)
{
	const struct mg_second *second = &core->second;
	struct mg_second *last = &core->last_second;
	int r;

	last->since = now - second->since;
	last->periods = core->stats.periods - second->periods;
	last->throttled_ns = core->stats.throttled_ns - second->throttled_ns;
	for (r = 0; r < MW_RESOURCES; r++) {
		const struct mw_account *account = &core->policy.account[r];

		last->used[r] = account->total_used - second->used[r];
		last->assigned[r] = account->total_assigned - second->assigned[r];
		last->used_max[r] = core->counter[r].second_max;
	}
	begin_second(core, now);
}

/* ---- periods ---- */

/**
 * mg_sharing() - do other cores get what one core does not use?
 *
 * Return: if false, no core needs to know when another core's period begins.
 */
bool mg_sharing(void)
{
	return mw_load(&mg_guard.policy.best_effort) != MW_NONE ||
	       mw_load(&mg_guard.policy.reclaim);
}

static bool has_limit(const struct mg_core *core)
{
	int r;

	for (r = 0; r < mg_guard.resources; r++)
		if (core->policy.account[r].budget != MW_UNLIMITED)
			return true;
	return false;
}

/* Does the budget change with the next period? */
static bool budget_changes(const struct mg_core *core)
{
	int r;

	for (r = 0; r < mg_guard.resources; r++)
		if (mw_load(&core->policy.account[r].next_budget) !=
		    core->policy.account[r].budget)
			return true;
	return false;
}

/* Does the core's debt keep it from donating while it rests? */
static bool owed_first(const struct mg_core *core)
{
	int r;

	if (!mw_load(&mg_guard.policy.reclaim))
		return false;
	for (r = 0; r < mg_guard.resources; r++)
		if (core->policy.account[r].owed)
			return true;
	return false;
}

/* Is no budget about to be used up? The core has no limit, is idle, or is far below its budget. */
static bool needs_no_timer(struct mg_core *core, bool idle)
{
	int r;

	if (!idle && core->light < LIGHT_PERIODS && has_limit(core))
		return false;
	if (core->policy.throttled || core->policy.exhausted || core->leaving_hold)
		return false;
	if (core->pending || budget_changes(core))
		return false;
	if (idle)
		return true;
	if (owed_first(core))
		return false;
	for (r = 0; r < mg_guard.resources; r++) {
		u64 budget = core->policy.account[r].budget;

		if (!(budget >> MG_CHUNK_SHIFT) ||
		    mg_counter_used(&core->counter[r]) > budget >> MG_LIGHT_SHIFT)
			return false;
	}
	return true;
}

/*
 * A core that has used little for a while, or idles while other cores may use what it leaves, is
 * interrupted after each chunk of its budget, not at the end of each period. The period in which it
 * used the chunk is unknown, so the chunk is charged to the period in which it ended. Then no
 * period exceeds its budget, and that one may use up to a chunk less.
 */
static void arm_chunks(struct mg_core *core)
{
	int r;

	core->chunk_number = core->number;
	for (r = 0; r < mg_guard.resources; r++) {
		struct mg_counter *counter = &core->counter[r];
		u64 budget = core->policy.account[r].budget;

		counter->mark = counter->begin + mg_counter_used(counter);
		mg_counter_arm(counter, budget == MW_UNLIMITED ?
						MW_UNLIMITED :
						max(budget >> MG_CHUNK_SHIFT, 1ULL));
	}
}

/* Do other cores get what this core leaves of its budget? */
static bool offers(const struct mg_core *core)
{
	int r;

	for (r = 0; r < mg_guard.resources; r++)
		if (core->policy.account[r].offered)
			return true;
	return false;
}

/* Without a timer the core does not see periods begin: do the other cores continue without it? */
static bool rest(struct mg_core *core, u64 now, bool idle)
{
	mw_core_rest(&mg_guard.policy, &core->policy);
	if (!core->policy.resting)
		return false;
	if (idle)
		carry_out(core, mw_core_away(&mg_guard.policy, &core->policy), now);
	return true;
}

/* When does the core's timer expire next? U64_MAX: it needs no timer. */
static u64 next_look(struct mg_core *core, u64 now, bool idle)
{
	bool had_chunks = core->chunks;

	core->quiet = needs_no_timer(core, idle) && rest(core, now, idle);
	core->far_below = core->quiet && !idle && has_limit(core);
	core->chunks = core->far_below || (core->quiet && offers(core));
	if (core->chunks)
		arm_chunks(core);
	else if (had_chunks)
		count_and_arm(core);
	/*
	 * The periods that an idle core sleeps through repay what it owes; then it donates again.
	 */
	if (core->far_below || (core->quiet && owed_first(core)))
		return now + clamp_t(u64, MG_LOOK_PERIODS * core->period_ns,
				     core->period_ns, NSEC_PER_SEC);
	return core->quiet ? U64_MAX : core->next;
}

/*
 * Ends the core's period. Returns MW_CONTINUE if the core is in that period already; else
 * mw_period_open() has to follow.
 */
static enum mw_action join_period(struct mg_core *core, u64 now, u64 last,
				  bool idle, const u64 *used)
{
	u64 epoch = mw_census_read(&mg_guard.policy).epoch, number = core->number;
	u64 ahead = (epoch - number) & (2 * MG_HALF_A_CIRCLE - 1);
	enum mw_action action;

	/*
	 * After almost a whole circle without a timer the policy cannot distinguish that old period
	 * from one to come.
	 */
	if (unlikely(number - last > MG_HALF_A_CIRCLE && ahead < MG_HALF_A_CIRCLE &&
		     (ahead || epoch == core->policy.epoch)))
		number += MG_HALF_A_CIRCLE;
	action = mw_period_join(&mg_guard.policy, &core->policy, number, idle, used);
	if (action != MW_CONTINUE)
		mg_clock_joined(core, now);
	return action;
}

static bool counters_lost(const struct mg_core *core)
{
	int r;

	for (r = 0; r < mg_guard.resources; r++)
		if (mg_counter_lost(&core->counter[r]))
			return true;
	return false;
}

/*
 * Without its counter the core runs unregulated: count these periods and have the counter mended.
 * They used nothing, but the core is not far below its budget: when the counter counts again, a
 * timer must arm it soon.
 */
static void book_lost(struct mg_core *core, u64 now, u64 periods)
{
	core->stats.unregulated_periods += periods;
	core->light = 0;
	if (now < core->mend_at)
		return;
	core->mend_at = now + NSEC_PER_SEC;
	mg_mend_counters();
}

/*
 * Would the core be throttled if it used up its budget now? Without a timer it has other books, see
 * by_chunks(), or is tried. A core that is exhausted and not throttled may use what it likes.
 */
static bool is_bound(const struct mg_core *core)
{
	return !core->quiet && !core->policy.exhausted && !mw_load(&core->policy.rt);
}

static void begin_period(struct mg_core *core, u64 now, u64 late, bool idle)
{
	const struct mw_core *policy = &core->policy;
	u64 used[MW_RESOURCES] = {}, assigned[MW_RESOURCES] = {};
	u64 allowed[MW_RESOURCES] = {}, resting[MW_RESOURCES] = {};
	bool throttled = policy->throttled, best_effort = policy->best_effort;
	bool bound = is_bound(core);
	u64 epoch = mg_epoch(core), throttled_ns = 0, periods, last = core->number;
	u64 since, missed;
	enum mw_action action;
	int r;

	mg_book_passed(core);
	mg_clock_read(core, now);
	since = core->number - core->begun;
	core->begun = core->number;
	core->booked = core->number;
	periods = core->quiet ? core->number - last : 1;
	missed = core->number > last ? core->number - last - 1 : 0;
	for (r = 0; r < mg_guard.resources; r++) {
		struct mg_counter *counter = &core->counter[r];

		used[r] = by_chunks(core, r) ? counter->mark - counter->begin :
					       mg_counter_used(counter);
		assigned[r] = policy->account[r].assigned;
		allowed[r] = mw_allowed(policy, r);
		if (policy->account[r].budget != MW_UNLIMITED)
			resting[r] = policy->account[r].budget -
				     policy->account[r].offered;
	}
	action = join_period(core, now, last, idle, used);
	if (action == MW_CONTINUE)
		return;
	/* A new budget says nothing about the period that has ended. */
	for (r = 0; r < mg_guard.resources; r++) {
		if (policy->account[r].budget == MW_UNLIMITED)
			core->counter[r].unlimited += used[r];
		if (throttled)
			book_stop(core, r, used[r], assigned[r], allowed[r]);
		else if (bound)
			book_unstopped(core, r, used[r], allowed[r], missed);
		book_burst(core, r);
	}
	mw_period_open(&mg_guard.policy, &core->policy);

	if (throttled) {
		throttled_ns = now - core->throttled_since;
		release(core, now);
	}
	trace_period(epoch, periods, late, used, assigned, throttled_ns);
	core->light = min(core->light + periods, LIGHT_PERIODS);
	for (r = 0; r < mg_guard.resources; r++) {
		core->counter[r].begin += used[r];
		average(&core->counter[r], used[r], since, periods);
		book_resource(core, r, used[r], assigned[r], resting[r], periods,
			      best_effort);
	}
	core->stats.periods += periods;
	mg_book_time(core, now);
	core->stats.late_sum += late;
	if (late > core->stats.late_max)
		core->stats.late_max = late;
	if (best_effort)
		core->stats.best_effort_ns += now - core->best_effort_since;
	if (unlikely(counters_lost(core)))
		book_lost(core, now, periods);
	if (unlikely(core->period_changed)) {
		/* What a period of another length used says nothing about this one. */
		core->period_changed = false;
		core->limits_changed = true;
		memset(&core->last_second, 0, sizeof(core->last_second));
	}
	if (unlikely(core->limits_changed)) {
		/* Use without a limit does not count against a later limit. */
		core->limits_changed = false;
		begin_second(core, now);
		for (r = 0; r < MW_RESOURCES; r++)
			core->counter[r].used_max = 0;
	}
	if (unlikely(now - core->second.since >= NSEC_PER_SEC))
		book_second(core, now);
	if (unlikely(READ_ONCE(core->reset)))
		clear_stats(core, now);
	if (core->waiting || owes(core))
		let_run(core, now);
	if (!core->hold && !gives_back(core))
		arm_anew(core, used);
	if (unlikely(action != MW_RUN))
		carry_out(core, action, now);
}

static void start_timer(struct mg_core *core, u64 at)
{
	hrtimer_start(&core->timer, ns_to_ktime(at), HRTIMER_MODE_ABS_PINNED_HARD);
}

/* Is the core held for measurement? Its timer then ends the trial, see release_trial(). */
static bool is_tried(const struct mg_core *core)
{
	return core->trial && core->hold;
}

static void core_used_up(struct mg_core *core, u64 now);

/*
 * The core has no timer; does it need one now? It does if it used a chunk too soon. Interrupts on
 * an idle core count as well: the core cannot use what it has given away. Such a core stays out of
 * the other cores' periods.
 */
static void look_again(struct mg_core *core, u64 now, bool idle, bool chunk_used)
{
	bool too_soon;
	u64 next;

	/* A trial needs its timer; when it ends, the core looks. */
	if (unlikely(is_tried(core)))
		return;
	begin_period(core, now, 0, idle);
	/* Clear them in the middle of a period, too: the next one may be far away. */
	if (unlikely(READ_ONCE(core->reset)))
		clear_stats(core, now);
	too_soon = chunk_used && core->number - core->chunk_number < CHUNK_PERIODS;
	if (too_soon)
		core->light = 0;
	next = next_look(core, now, idle && !too_soon);
	if (next != U64_MAX)
		start_timer(core, next);
	if (too_soon && idle)
		carry_out(core, mw_core_away(&mg_guard.policy, &core->policy), now);
}

/* Long enough for the thread to halt, even if its CPU is the one that this code runs on. */
#define TRIAL_NS (100 * NSEC_PER_USEC)
#define TRIALS 10
/* Code that cannot be preempted, such as the end of a mapping, may take longer. */
#define TRIAL_WAITS 100

static void begin_try(struct mg_core *core)
{
	int r;

	for (r = 0; r < MW_RESOURCES; r++)
		core->counter[r].tried_at = core->counter[r].begin +
					    mg_counter_used(&core->counter[r]);
}

/*
 * An event that a halted core counts every 20 ns or more often measures time, not traffic. Its
 * count while the core is held says nothing about a stop.
 */
static void release_trial(struct mg_core *core, u64 now)
{
	int r;

	/* If the thread has not run yet, the count shows only what other tasks did meanwhile. */
	core->tried = !core->waiting;
	for (r = 0; core->tried && r < MW_RESOURCES; r++) {
		struct mg_counter *counter = &core->counter[r];
		u64 count = counter->begin + mg_counter_used(counter);

		counter->runs_on = count - counter->held_at > TRIAL_NS / 20;
		if (!counter->runs_on)
			mw_expect_stop(&core->policy, r, count - counter->tried_at);
		counter->released = count;
	}
	mg_unthrottle(core, now);
	begin_period(core, now, 0, false);
	core->quiet = false;
	core->chunks = false;
	/* The tasks run on, and an overflow during the trial had no effect. */
	if (core->waiting)
		count_and_arm(core);
}

/* The slow path. Returns when the timer expires next; U64_MAX: never. */
static noinline u64 end_period(struct mg_core *core, u64 now)
{
	u64 late = core->quiet ? 0 : now - core->next, next;
	u64 epoch = core->policy.epoch;
	bool idle = core_is_idle();

	if (unlikely(is_tried(core))) {
		/* What the tasks have used meanwhile does not belong to a stop. */
		if (core->waiting && core->waits_left) {
			core->waits_left--;
			begin_try(core);
			return now + TRIAL_NS;
		}
		release_trial(core, now);
		return core->next;
	}
	if (unlikely(core->deferred)) {
		/* The thread has run and left meanwhile. */
		if (now < core->run_until && core->run_until < core->next)
			return core->run_until;
		if (now < core->next) {
			core->deferred = false;
			core_used_up(core, now);
			return core->next;
		}
	}
	if (unlikely(late >= core->period_ns))
		core->stats.missed_periods += div64_u64(late, core->period_ns);
	begin_period(core, now, late, idle);
	core->deferred = false;
	next = next_look(core, now, idle);
	if (!core->light && !core->quiet && core->policy.epoch != epoch)
		mg_begin_steady(core);
	return next;
}

static enum hrtimer_restart period_elapsed(struct hrtimer *timer)
{
	struct mg_core *core = container_of(timer, struct mg_core, timer);
	u64 now = ktime_get_ns(), next;

	next = mg_pass_period(core, now) ? core->next : end_period(core, now);
	if (next == U64_MAX)
		return HRTIMER_NORESTART;
	hrtimer_set_expires(timer, ns_to_ktime(next));
	return HRTIMER_RESTART;
}

/* By how many events has the core passed what this period assigns? */
static u64 over(struct mg_core *core, enum mw_resource r)
{
	u64 used = mg_counter_used(&core->counter[r]);
	u64 assigned = core->policy.account[r].assigned;

	return used > assigned ? used - assigned : 0;
}

/* Another core or a changed setting makes this core look again. Interrupts are off. */
static void look(struct mg_core *core)
{
	u64 now = ktime_get_ns(), number = core->number;
	int r;

	if (!core->regulated)
		return;
	if (core->quiet) {
		look_again(core, now, core_is_idle(), false);
		return;
	}
	mg_book_passed(core);
	/*
	 * Without sharing, a period begins early only if the clock was set. A period that was only
	 * noted, and that the policy has not seen, is not begun again.
	 */
	if (mg_clock_phase() != core->phase ||
	    (mg_sharing() && (core->number == core->begun || now >= core->next))) {
		begin_period(core, now, 0, core_is_idle());
		if (core->number != number)
			core->deferred = false;
		start_timer(core, core->deferred ? min(core->run_until, core->next) :
						   core->next);
	}
	if (mw_release(&mg_guard.policy, &core->policy) != MW_RUN)
		return;
	/* Events from now on do not belong to the stop. */
	for (r = 0; r < MW_RESOURCES; r++) {
		struct mg_counter *counter = &core->counter[r];

		if (counter->stopped)
			mg_counter_overshot(counter, over(core, r));
		counter->stopped = false;
	}
	release(core, now);
	if (core->policy.best_effort)
		book_best_effort(core, now);
}

static void core_kicked(void *info)
{
	struct mg_core *core = info;

	/* A full barrier, like the sender's: the code below sees what the sender did. */
	atomic_xchg(&core->kicked, 0);
	look(core);
}

static void core_asked(void *info)
{
	look(info);
}

/* A core without a timer has complete books until its current period ends. */
static void core_freshened(void *info)
{
	struct mg_core *core = info;
	u64 now = ktime_get_ns();

	if (!core->quiet || now >= core->next)
		look(core);
	else if (READ_ONCE(core->reset))
		clear_stats(core, now);
}

static bool books_behind(const struct mg_core *core)
{
	return READ_ONCE(core->quiet) || READ_ONCE(core->steady) ||
	       READ_ONCE(core->number) != READ_ONCE(core->booked);
}

/**
 * mg_kick_all() - make every core look at the settings now
 *
 * Waits until all cores have looked. The caller prevents CPU hotplug.
 */
void mg_kick_all(void)
{
	int cpu;

	for_each_mg_cpu(cpu)
		smp_call_function_single(cpu, core_asked,
					 &per_cpu(mg_cores, cpu), true);
}

/**
 * mg_free_all() - let the tasks of every core run as if it had no limit, from now on
 *
 * A core whose real-time tasks use up its budget may leave its ordinary threads nothing, those of
 * hotplug and work among them. This needs no thread of the core: an interrupt reaches a held core,
 * too. Not for a module whose settings can still be changed.
 */
void mg_free_all(void)
{
	int cpu;

	for_each_cpu(cpu, &mg_guard.cpus) {
		struct mg_core *core = &per_cpu(mg_cores, cpu);

		mw_set_rt(&core->policy, true);
		/* An offline core is not held. */
		smp_call_function_single(cpu, core_asked, core, true);
	}
}

/**
 * mg_freshen() - have cores update books that are behind
 *
 * The caller prevents CPU hotplug.
 */
void mg_freshen(void)
{
	int cpu;

	for_each_mg_cpu(cpu) {
		struct mg_core *core = &per_cpu(mg_cores, cpu);

		if (books_behind(core))
			smp_call_function_single(cpu, core_freshened, core, true);
	}
}

/* struct mg_copying - a core and where its copy goes */
struct mg_copying {
	struct mg_core *core;
	struct mg_core *copy;
};

static void core_copied(void *info)
{
	struct mg_copying *copying = info;

	if (books_behind(copying->core))
		core_freshened(copying->core);
	*copying->copy = *copying->core;
}

/**
 * mg_core_copy() - all figures of a core at one moment, with its books brought up to date
 * @cpu: one of those to regulate, online or not
 * @copy: for its figures; its timer, event and thread are not to be used
 *
 * A period that begins between two reads of a running core would be in one figure and not in the
 * other. The caller prevents CPU hotplug.
 */
void mg_core_copy(unsigned int cpu, struct mg_core *copy)
{
	struct mg_copying copying = {
		.core = &per_cpu(mg_cores, cpu),
		.copy = copy,
	};

	if (!cpu_online(cpu) ||
	    smp_call_function_single(cpu, core_copied, &copying, true))
		*copy = *copying.core;
}

/* ---- overflow ---- */

static void used_up(struct mg_counter *counter, u64 now)
{
	struct mg_core *core = counter->core;
	enum mw_resource r = counter->resource;
	struct mw_account *account = &core->policy.account[r];
	u64 used = mg_counter_used(counter), reclaimed = account->total_reclaimed;
	bool best_effort = core->policy.best_effort;
	enum mw_action action;
	int each;

	core->stats.overflows++;
	action = mw_overflow(&mg_guard.policy, &core->policy, r, used);
	if (action == MW_THROTTLE) {
		counter->stopped = true;
		for (each = 0; each < MW_RESOURCES; each++)
			core->counter[each].held = U64_MAX;
	}
	if (account->total_reclaimed != reclaimed)
		trace_reclaim(mg_epoch(core), r,
			      account->total_reclaimed - reclaimed,
			      mw_pool_read(&mg_guard.policy, r));
	trace_overflow(mg_epoch(core), r, used, account->assigned, action);
	if (action == MW_RUN)
		mg_counter_arm(counter, mw_until_overflow(&core->policy, r));
	else
		arm_counters(core);
	if (core->policy.best_effort && !best_effort)
		book_best_effort(core, now);
	carry_out(core, action, now);
	if (action == MW_NEW_PERIOD)
		look(core);
}

/* Handles an overflow that came too soon after a throttle. */
static void core_used_up(struct mg_core *core, u64 now)
{
	int r;

	core->overflow_ns = now;
	for (r = 0; r < MW_RESOURCES && !core->policy.throttled; r++)
		if (core->counter[r].event &&
		    mw_used_up(&core->policy, r, mg_counter_used(&core->counter[r])))
			used_up(&core->counter[r], now);
	if (!core->policy.throttled)
		count_and_arm(core);
}

/*
 * One of two events may have used up its share while both together have not yet used
 * the chunk: it is armed for what remains.
 */
static bool chunk_goes_on(struct mg_core *core, struct mg_counter *counter)
{
	u64 chunk = max(core->policy.account[counter->resource].budget >> MG_CHUNK_SHIFT, 1ULL);
	u64 used = counter->begin + mg_counter_used(counter) - counter->mark;

	if (used >= chunk)
		return false;
	mg_counter_arm(counter, chunk - used);
	return true;
}

static void quiet_overflow(struct mg_core *core, struct mg_counter *counter)
{
	bool two = static_branch_unlikely(&mg_two_events) && counter->second;

	if (two && core->chunks && chunk_goes_on(core, counter))
		return;
	look_again(core, ktime_get_ns(), core_is_idle(), core->chunks);
	/* Within the same period the other event would keep its old share. */
	if (two && core->quiet && !core->chunks)
		count_and_arm(core);
}

/**
 * mg_core_overflow() - handle the counter's interrupt, outside of NMI context
 * @counter: of this CPU; interrupts are off
 */
void mg_core_overflow(struct mg_counter *counter)
{
	struct mg_core *core = counter->core;
	u64 now;

	if (!core->regulated || core->hold || gives_back(core) || core->deferred)
		return;
	core->steady = false;
	if (core->quiet) {
		/* Interrupts on an idle core cause this, too. */
		quiet_overflow(core, counter);
		return;
	}
	now = ktime_get_ns();
	if (unlikely(now < core->run_until)) {
		mg_counter_arm(counter, MW_UNLIMITED);
		if (core->run_until < core->next) {
			core->deferred = true;
			start_timer(core, core->run_until);
		}
		return;
	}
	used_up(counter, now);
}

static bool nothing_left(const struct mg_core *core)
{
	int r;

	for (r = 0; r < mg_guard.resources; r++)
		if (mw_until_overflow(&core->policy, r) == 1)
			return true;
	return false;
}

/* The throttle thread has left the core; later events are charged to the core's tasks. */
static void left(struct mg_core *core)
{
	u64 now = ktime_get_ns();
	int r;

	core->leaving_hold = false;
	if (core->waiting)
		mg_throttle_arrived(core);
	else
		core->leave_ns_min = min(core->leave_ns_min,
					 now - core->released_at);
	let_run(core, now);
	for (r = 0; r < MW_RESOURCES; r++) {
		struct mg_counter *counter = &core->counter[r];
		u64 used = mg_counter_used(counter);

		if (core->trial && core->tried)
			counter->own = used + counter->begin - counter->released;
		mw_counted(&core->policy, r, used);
	}
	WRITE_ONCE(core->trial, false);
	/* If the budget is used up, an interrupt would only shorten the run. */
	if (core->run_until < core->next && nothing_left(core)) {
		core->deferred = true;
		start_timer(core, core->run_until);
		return;
	}
	arm_counters(core);
}

/* ---- which task runs ---- */

static struct tracepoint *sched_switch;

static void find_sched_switch(struct tracepoint *tp, void *unused)
{
	if (!strcmp(tp->name, "sched_switch"))
		sched_switch = tp;
}

static void switched(void *unused, bool preempt, struct task_struct *prev,
		     struct task_struct *next, unsigned int prev_state)
{
	struct mg_core *core = this_cpu_ptr(&mg_cores);

	if (!core->regulated)
		return;
	if (is_idle_task(prev)) {
		if (core->quiet && !core->far_below)
			look_again(core, ktime_get_ns(), false, false);
		else
			mw_core_active(&mg_guard.policy, &core->policy);
	} else if (core->quiet && is_idle_task(next)) {
		/* No timer would find the core idle, and other cores may be waiting for it. */
		if (mw_load(&mg_guard.policy.best_effort) != MW_NONE)
			carry_out(core, mw_core_away(&mg_guard.policy, &core->policy),
				  ktime_get_ns());
	} else if (unlikely(prev == core->thread) && core->leaving_hold &&
		   !preempt && prev_state) {
		/* The thread leaves by itself; being preempted by the stopper does not count. */
		left(core);
	}
}

/**
 * mg_watch_switches() - watch for cores that leave idle or their throttle thread
 *
 * Return: 0 or a negative errno.
 */
int mg_watch_switches(void)
{
	/* The probe is registered as a void pointer; this checks its type against the kernel's. */
	check_trace_callback_type_sched_switch(switched);
	for_each_kernel_tracepoint(find_sched_switch, NULL);
	if (!sched_switch) {
		pr_err("this kernel has no sched_switch tracepoint: CONFIG_TRACEPOINTS is needed\n");
		return -EOPNOTSUPP;
	}
	return tracepoint_probe_register(sched_switch, switched, NULL);
}

/** mg_unwatch_switches() - undo mg_watch_switches() */
void mg_unwatch_switches(void)
{
	tracepoint_probe_unregister(sched_switch, switched, NULL);
	tracepoint_synchronize_unregister();
}

/* ---- events that the regulator itself causes ---- */

/* Is the core in a period that the policy knows, and neither held nor about to be? */
static bool may_be_tried(const struct mg_core *core)
{
	if (core->hold || core->waiting || core->leaving_hold || core->deferred)
		return false;
	return !core->policy.exhausted && (core->quiet || core->number == core->begun);
}

/*
 * See try_throttle(). The trial has the core's timer, as if the core had none, until
 * release_trial().
 */
static void begin_trial(struct mg_core *core)
{
	if (core->trial || core->tried || !may_be_tried(core))
		return;
	mg_book_passed(core);
	core->quiet = true;
	core->trial = true;
	core->waits_left = TRIAL_WAITS;
	begin_try(core);
	mg_throttle(core);
	start_timer(core, ktime_get_ns() + TRIAL_NS);
}

static void trial_wanted(void *info)
{
	struct mg_core *core = info;

	if (core->regulated)
		begin_trial(core);
}

/*
 * The interrupt, the wake-up and the switch of a throttle cause events, and the core is charged for
 * them. One throttle without need shows how many they are at its start and at its end, since a
 * budget must leave something for the tasks. Code that cannot be preempted may keep the thread from
 * the core; the trial is then repeated.
 */
static void try_throttle(struct mg_core *core)
{
	int left, i;

	for (left = TRIALS; left; left--) {
		smp_call_function_single(core->cpu, trial_wanted, core, true);
		for (i = 0; i < 100 && READ_ONCE(core->trial); i++)
			usleep_range(100, 200);
		if (READ_ONCE(core->tried))
			break;
		usleep_range(2000, 3000);
	}
}

/* ---- coming and going ---- */

static int open_counters(struct mg_core *core)
{
	const struct mg_code *code;
	int r, err;

	for (r = 0; r < mg_guard.resources; r++) {
		err = mg_counter_open(&core->counter[r], core->cpu, &code);
		if (!err)
			continue;
		if (err == -EDOM || err == -EPROTO)
			return err;
		pr_err("CPU%u: event %s (%s, %#llx) refused with error %d; try another g_hw_type=, or page-faults where there is no PMU\n",
		       core->cpu, core->event.name,
		       code == &core->event.write ? "write" : "read", code->config,
		       err);
		return err;
	}
	return 0;
}

static void close_counters(struct mg_core *core)
{
	int r;

	for (r = 0; r < MW_RESOURCES; r++)
		mg_counter_close(&core->counter[r]);
}

/* Runs on the core's CPU with interrupts off; sets *@info to 0 if regulation begins. */
static void begin_regulation(void *info)
{
	struct mg_core *core = this_cpu_ptr(&mg_cores);
	u64 now = ktime_get_ns();
	int *err = info;
	int r;

	/* The callback that stops this core has already run. */
	if (core->leaving)
		return;
	*err = 0;
	core->generation = U64_MAX;
	core->clock_seq = MG_READ_ANEW;
	mg_clock_read(core, now);
	/* The second that ended with the core's regulation was cut short. */
	begin_second(core, now);
	memset(&core->last_second, 0, sizeof(core->last_second));
	core->timed = now;
	mw_core_online(&mg_guard.policy, &core->policy);
	mg_clock_joined(core, now);
	mw_period_open(&mg_guard.policy, &core->policy);
	for (r = 0; r < MW_RESOURCES; r++) {
		core->counter[r].begin = 0;
		core->counter[r].begin = mg_counter_used(&core->counter[r]);
		core->counter[r].stopped = false;
		core->counter[r].far = false;
		core->counter[r].burst = 0;
	}
	arm_counters(core);
	core->begun = core->number;
	core->booked = core->number;
	core->mend_at = 0;
	core->regulated = true;
	core->far_below = false;
	core->chunks = false;
	core->light = 0;
	core->quiet = needs_no_timer(core, false);
	if (!core->quiet)
		start_timer(core, core->next);
	/* The first one precedes the first stop: a small budget leaves few other moments. */
	begin_trial(core);
}

/**
 * mg_core_start() - regulate a CPU from now on
 * @cpu: unused, see mg_core_is_idle(); if it is offline or goes offline, nothing happens
 *
 * Not for hotplug callbacks, because perf takes the hotplug lock.
 *
 * Return: 0, or a negative errno with everything undone.
 */
int mg_core_start(unsigned int cpu)
{
	struct mg_core *core = &per_cpu(mg_cores, cpu);
	int err;

	if (!cpu_online(cpu) || READ_ONCE(core->leaving))
		return 0;
	err = mg_event_of_core(core);
	if (!err)
		err = open_counters(core);
	if (!err)
		err = mg_throttle_create(core);
	if (!err) {
		err = -ENODEV;
		smp_call_function_single(cpu, begin_regulation, &err, true);
	}
	if (!err) {
		try_throttle(core);
		mg_warn_of_small_budgets(core);
		return 0;
	}
	mg_throttle_destroy(core);
	close_counters(core);
	return cpu_online(cpu) && !core->leaving ? err : 0;
}

/**
 * mg_core_stop() - end the regulation of this CPU, throttled or not
 * @cpu: the CPU that this runs on, regulated or not
 *
 * mg_core_close() releases the perf events later: see mg_core_start().
 */
void mg_core_stop(unsigned int cpu)
{
	struct mg_core *core = &per_cpu(mg_cores, cpu);
	enum mw_action action;
	bool throttled;
	int r;

	WRITE_ONCE(core->leaving, true);
	if (!core->regulated)
		return;
	local_irq_disable();
	WRITE_ONCE(core->stopping, true);
	/* For mg_core_is_idle(): a CPU that sees @regulated cleared also sees @stopping set. */
	smp_store_release(&core->regulated, false);
	mg_book_passed(core);
	for (r = 0; r < mg_guard.resources; r++) {
		struct mg_counter *counter = &core->counter[r];

		if (counter->far)
			core->policy.account[r].total_used += mg_counter_used(counter);
		/* It may be armed for one event: from now on no interrupt arms it for more. */
		mg_counter_arm(counter, MW_UNLIMITED);
	}
	throttled = core->policy.throttled;
	action = mw_core_offline(&mg_guard.policy, &core->policy);
	if (throttled)
		release(core, ktime_get_ns());
	core->hold = false;
	core->waiting = false;
	core->leaving_hold = false;
	core->trial = false;
	core->quiet = false;
	core->far_below = false;
	core->chunks = false;
	core->deferred = false;
	carry_out(core, action, ktime_get_ns());
	local_irq_enable();

	hrtimer_cancel(&core->timer);
	mg_throttle_destroy(core);
	/* For mg_core_is_idle(): a CPU that starts this core next sees that the thread is gone. */
	smp_store_release(&core->stopping, false);
}

/**
 * mg_core_is_idle() - is the core neither regulated nor being stopped?
 * @cpu: any possible CPU
 *
 * Return: true if the caller, as the only code that starts cores, may close or start this one.
 */
bool mg_core_is_idle(unsigned int cpu)
{
	struct mg_core *core = &per_cpu(mg_cores, cpu);

	/* Pairs with the stores in mg_core_stop(), as does the load below. */
	if (smp_load_acquire(&core->regulated))
		return false;
	/* mg_core_stop() clears this one last. */
	return !smp_load_acquire(&core->stopping);
}

/**
 * mg_core_close() - release the perf events of a stopped core
 * @cpu: stopped; need not be online
 */
void mg_core_close(unsigned int cpu)
{
	close_counters(&per_cpu(mg_cores, cpu));
}

/** mg_cores_init() - initialise every possible core, offline and without limits */
void mg_cores_init(void)
{
	int cpu, r;

	for_each_possible_cpu(cpu) {
		struct mg_core *core = &per_cpu(mg_cores, cpu);

		core->cpu = cpu;
		for (r = 0; r < MW_RESOURCES; r++) {
			core->counter[r].core = core;
			core->counter[r].resource = r;
			ratelimit_state_init(&core->counter[r].losses, 60 * HZ, 10);
			core->wanted[r] = MW_UNLIMITED;
			core->budget[0][r] = MW_UNLIMITED;
			core->budget[1][r] = MW_UNLIMITED;
		}
		core->leave_ns_min = U64_MAX;
		mw_core_init(&core->policy);
		INIT_CSD(&core->kick, core_kicked, core);
		hrtimer_setup(&core->timer, period_elapsed, CLOCK_MONOTONIC,
			      HRTIMER_MODE_ABS_PINNED_HARD);
	}
}
