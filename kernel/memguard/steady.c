// SPDX-License-Identifier: GPL-2.0-only
/*
 * Periods that need no decision. Without sharing, a core that stays within its budget only needs
 * its counter armed anew when a period begins: the census and the pool do not matter. So such a
 * period is only noted, and up to STEADY_PERIODS of them enter the books at once. To the policy,
 * such a core looks like one whose timer is late. Each of these periods has the whole budget.
 *
 * A counter that counts almost nothing is not even read: it interrupts after a chunk of its budget.
 * Its events since the first of these periods are charged to the period in which it interrupts, or
 * to the last one.
 */
#include <linux/log2.h>
#include <linux/math64.h>

#include "memguard.h"
#include "trace.h"

/* A core up to twice as many periods behind still counts as late in the policy, not as early. */
#define STEADY_PERIODS 512

/* A counter that used more than this part of its budget is armed in each period. */
#define NEAR_SHIFT 3

/* Are the events of STEADY_PERIODS such periods no more than a chunk? */
static bool is_far(u64 used, u64 budget)
{
	return budget != MW_UNLIMITED && budget >> MG_CHUNK_SHIFT &&
	       used <= budget >> MG_CHUNK_SHIFT >> ilog2(STEADY_PERIODS);
}

/**
 * mg_begin_steady() - let mg_pass_period() begin the next periods, if possible
 * @core: of this CPU, interrupts off; it has a timer and has just begun a period
 *
 * The core's last period used more than 1/32 of a budget.
 */
void mg_begin_steady(struct mg_core *core)
{
	const struct mw_core *policy = &core->policy;
	int r;

	if (trace_period_enabled() || mg_sharing() || policy->reclaim ||
	    !policy->active || core->pending || core->hold || core->waiting ||
	    core->leaving_hold)
		return;
	for (r = 0; r < mg_guard.resources; r++) {
		const struct mw_account *account = &policy->account[r];

		if (account->assigned != account->budget || account->owed ||
		    account->offered || mg_counter_lost(&core->counter[r]))
			return;
	}
	for (r = 0; r < mg_guard.resources; r++) {
		struct mg_counter *counter = &core->counter[r];
		u64 budget = policy->account[r].budget;

		counter->passed_from = counter->begin;
		counter->near = counter->last > counter->whole >> NEAR_SHIFT;
		counter->far = is_far(counter->last, budget);
		if (counter->far)
			mg_counter_arm(counter, budget >> MG_CHUNK_SHIFT);
	}
	core->steady = true;
	core->steady_until = min(core->next + (STEADY_PERIODS - 1) * core->period_ns,
				 core->second.since + NSEC_PER_SEC);
}

/*
 * The counter's overflow is on its way, or the timer came first. The next period begins with a
 * decision, for one that may have to repay this one.
 */
static void book_over(struct mg_core *core, struct mg_counter *counter, u64 used)
{
	core->steady = false;
	if (used > core->policy.account[counter->resource].assigned &&
	    !mw_load(&core->policy.rt)) {
		counter->over_periods++;
		counter->burst = used;
	}
}

/* Returns whether the period used more than 1/32 of the budget. */
static bool pass_resource(struct mg_core *core, struct mg_counter *counter)
{
	u64 used;

	if (counter->far)
		return false;
	/* Arming stops the event, which also reads it. */
	if (counter->near) {
		mg_counter_arm(counter, counter->whole);
		used = counter->interrupts_at - counter->whole - counter->begin;
		counter->begin += used;
	} else {
		used = mg_counter_used(counter);
		counter->begin += used;
		if (!mg_counter_keep(counter, used, counter->whole))
			mg_counter_arm(counter, counter->whole);
	}
	counter->near = used > counter->whole >> NEAR_SHIFT;
	if (used > counter->second_max)
		counter->second_max = used;
	if (unlikely(used > counter->whole))
		book_over(core, counter, used);
	return used > counter->whole >> MG_LIGHT_SHIFT;
}

/**
 * mg_pass_period() - begin a period that needs no decision
 * @core: of this CPU, interrupts off
 * @now: ns, monotonic; the start of the period or later
 *
 * Return: if false, nothing has changed, and the period has to begin with a decision.
 */
bool mg_pass_period(struct mg_core *core, u64 now)
{
	u64 late = now - core->next;
	bool heavy = false;
	int r;

	if (!core->steady || now >= core->steady_until || is_idle_task(current) ||
	    trace_period_enabled() || READ_ONCE(core->reset))
		return false;
	for (r = 0; r < mg_guard.resources; r++) {
		if (unlikely(mg_event_lost(core->counter[r].event)))
			return false;
	}
	if (static_branch_unlikely(&mg_two_events) &&
	    mg_event_lost(core->counter[MW_READ].second))
		return false;
	if (!mg_clock_step(core, now))
		return false;
	core->stats.late_sum += late;
	if (late > core->stats.late_max)
		core->stats.late_max = late;
	for (r = 0; r < mg_guard.resources; r++)
		heavy |= pass_resource(core, &core->counter[r]);
	if (unlikely(!heavy))
		core->steady = false;
	return true;
}

/**
 * mg_book_time() - count the time of ended periods
 * @core: of this CPU, interrupts off
 * @until: ns, monotonic; when the last of them ended
 *
 * Periods differ in length if the setting changes, and if best effort ends them early.
 */
void mg_book_time(struct mg_core *core, u64 until)
{
	core->stats.elapsed_ns += until - core->timed;
	core->timed = until;
}

/**
 * mg_book_passed() - enter the periods that were only noted into the books
 * @core: of this CPU, interrupts off
 */
void mg_book_passed(struct mg_core *core)
{
	u64 passed = core->number - core->booked;
	int r;

	core->steady = false;
	if (!passed)
		return;
	for (r = 0; r < mg_guard.resources; r++) {
		struct mg_counter *counter = &core->counter[r];
		struct mw_account *account = &core->policy.account[r];
		u64 used = counter->begin - counter->passed_from;

		account->total_used += used;
		if (account->budget != MW_UNLIMITED)
			account->total_assigned += passed * account->budget;
		else
			counter->unlimited += used;
		if (!counter->far)
			mg_counter_average(counter,
					   div64_u64(used << MG_AVERAGE_SHIFT, passed),
					   passed);
		counter->passed_from = counter->begin;
	}
	core->stats.periods += passed;
	mg_book_time(core, core->next - core->period_ns);
	core->booked = core->number;
}
