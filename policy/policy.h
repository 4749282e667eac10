/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The regulator's decisions: budgets per core and period, predictive donation
 * and reclaim, and best-effort sharing once every active core has used its
 * budget. Source of the idea: Yun, Yao, Pellizzoni, Caccamo, Sha, "MemGuard",
 * RTAS 2013, and IEEE Trans. Computers 65(2), 2016.
 *
 * The library has no clock, no I/O, no locks and no memory of its own. A host
 * (kernel module, user-space regulator, simulator) counts events and keeps
 * time. The host calls the library and carries out the returned action.
 *
 * Calling rules: only the core itself calls a function that takes its struct
 * mw_core, one call at a time (in the kernel: on that CPU with interrupts off).
 * Any thread may call mw_set_*() at any time. A timer, kick or counter
 * interrupt may arrive after its core went offline; the call then returns
 * MW_CONTINUE and changes nothing.
 *
 * The host numbers the periods from one clock that all cores read. So a core
 * whose timer is late or missing still knows its period, and cores cannot get
 * out of step. Numbers grow; only their low 21 bits count.
 *
 * Cores share three kinds of atomic word; each is changed by compare-and-swap
 * only. Two kinds hold the epoch, which is the number of the global period that
 * they describe. So a core that is late or early can neither spend nor spoil
 * the events of another period:
 *
 *   census   epoch:21 | released:1 | online:14 | active:14 | exhausted:14
 *            The first core to reach a new epoch opens it, with every online
 *            core presumed active. A core that finds itself idle then removes
 *            itself. The swap that makes exhausted equal to active also records
 *            the consequence (released, or the next epoch). So exactly one core
 *            sees this happen: no wake-up is lost, and none is sent twice.
 *   pool[r]  epoch:21 | events:43
 *            Events that were donated in that epoch and not yet taken.
 *
 *   offered[r]  events that resting cores leave of their budgets in each period.
 *            It has no epoch: each pool starts with this number when it opens.
 *
 * A core rests while its host begins no periods for it, because the core is
 * idle or uses almost nothing. A core that rests and is idle also leaves the
 * census.
 *
 * A successful swap is a full barrier; loads acquire. The code relies on no
 * order between census and pools: it judges each word by the epoch inside it.
 */
#ifndef MEMWARDEN_POLICY_H
#define MEMWARDEN_POLICY_H

#include "types.h"

/* Budgets are events per period. The largest one means "no limit". */
#define MW_UNLIMITED ((1ULL << 40) - 1)
/* Periods are numbered on a circle. */
#define MW_EPOCH_MASK ((1ULL << 21) - 1)
/* The largest number that a census field holds. */
#define MW_MAX_CORES ((1U << 14) - 1)

enum mw_resource {
	MW_READ, /* last-level-cache refills */
	MW_WRITE, /* write-backs */
	MW_RESOURCES,
};

/* Best effort: what happens when all active cores have used their budgets. */
enum mw_best_effort {
	MW_NONE = 0, /* all cores wait for the period's end */
	MW_SPARE = 2, /* throttled cores run unregulated until then */
	MW_PROPORTIONAL = 5, /* a new period begins at once on all cores */
};

enum mw_action {
	/* Nothing changed; leave counters as they are. */
	MW_CONTINUE,
	/* Run; the next overflow comes after mw_until_overflow() more events. */
	MW_RUN,
	/* Block this core until mw_period_begin() or mw_release() returns MW_RUN. */
	MW_THROTTLE,
	/*
	 * This core continues unregulated; call mw_release() on every other
	 * core. If the core has become idle or gone offline, call it on every
	 * core.
	 */
	MW_RELEASE_ALL,
	/*
	 * A new period is open. Its number is mw_census_read().epoch; make it
	 * the number of the period that begins now. Call mw_period_begin() on
	 * every core, including this one.
	 */
	MW_NEW_PERIOD,
};

/**
 * struct mw_account - one resource of one core
 * @next_budget: budget of the next period; any thread may store it
 * @budget: this period's reservation
 * @assigned: events assigned to this core in this period so far
 * @used: events counted in this period, as last reported by the host
 * @donated: own events that went to the pool and were not taken back
 * @prediction: expected need of a period, in 1/16 events (EWMA, weights 1/2)
 * @shortfall: reservation left unused by a premature throttle in this period
 * @stop: what a stop uses, in 1/256 events, as learned by mw_settle_stop()
 * @owed: events used past the budgets of earlier periods and not yet repaid
 * @repaid: part of @assigned that repays @owed and is not available to tasks
 * @offered: events donated in each period that begins without the core
 * @total_used: events used in all ended periods
 * @total_assigned: events assigned in all ended periods (limited ones)
 * @total_donated: events given to the pool
 * @total_reclaimed: events taken from the pool, own donations included
 * @reclaim_errors: throttles that came before the own reservation was used
 */
struct mw_account {
	mw_atomic64 next_budget;
	u64 budget;
	u64 assigned;
	u64 used;
	u64 donated;
	u64 prediction;
	u64 shortfall;
	u64 stop;
	u64 owed;
	u64 repaid;
	u64 offered;
	u64 total_used;
	u64 total_assigned;
	u64 total_donated;
	u64 total_reclaimed;
	u64 reclaim_errors;
};

/**
 * struct mw_core - one core's state, accessed by that core alone
 * @rt: atomic flag, set by any thread: count the core but never throttle it
 * @epoch: the period that this core is in
 * @online: takes part since mw_core_online()
 * @active: counted as active in the census of @epoch
 * @exhausted: counted as exhausted in the census of @epoch
 * @throttled: blocked by the host
 * @best_effort: running unregulated until the period's end
 * @reclaim: donation was on when this period began
 * @away: idle, and not in the census
 * @resting: its offers are in @offered of struct mw_policy
 * @offers_end: after a rest, the last period whose pool may include its offers
 * @account: by enum mw_resource
 */
struct mw_core {
	mw_atomic64 rt;
	u64 epoch;
	bool online;
	bool active;
	bool exhausted;
	bool throttled;
	bool best_effort;
	bool reclaim;
	bool away;
	bool resting;
	u64 offers_end;
	struct mw_account account[MW_RESOURCES];
};

/**
 * struct mw_policy - state that all cores share
 * @census: epoch, online, active and exhausted cores in one word
 * @pool: donated events by resource
 * @offered: events that each new pool begins with, by resource
 * @best_effort: enum mw_best_effort
 * @reclaim: 0 or 1
 * @qmin: smallest chunk taken from the pool, in events; 0: 1/16 of the budget
 */
struct mw_policy {
	mw_atomic64 census;
	mw_atomic64 pool[MW_RESOURCES];
	mw_atomic64 offered[MW_RESOURCES];
	mw_atomic64 best_effort;
	mw_atomic64 reclaim;
	mw_atomic64 qmin;
};

/** struct mw_census - the census word, unpacked */
struct mw_census {
	u64 epoch;
	bool released;
	u32 online;
	u32 active;
	u32 exhausted;
};

void mw_policy_init(struct mw_policy *policy);
void mw_core_init(struct mw_core *core);

int mw_set_budget(struct mw_core *core, enum mw_resource resource, u64 events);
int mw_set_best_effort(struct mw_policy *policy, u64 mode);
int mw_set_reclaim(struct mw_policy *policy, u64 on);
int mw_set_qmin(struct mw_policy *policy, u64 events);
void mw_set_rt(struct mw_core *core, bool rt);

void mw_core_online(struct mw_policy *policy, struct mw_core *core);
enum mw_action mw_core_offline(struct mw_policy *policy, struct mw_core *core);
void mw_core_active(struct mw_policy *policy, struct mw_core *core);
enum mw_action mw_core_away(struct mw_policy *policy, struct mw_core *core);
void mw_core_rest(struct mw_policy *policy, struct mw_core *core);

enum mw_action mw_period_begin(struct mw_policy *policy, struct mw_core *core,
			       u64 number, bool idle,
			       const u64 used[MW_RESOURCES]);
enum mw_action mw_period_join(struct mw_policy *policy, struct mw_core *core,
			      u64 number, bool idle,
			      const u64 used[MW_RESOURCES]);
void mw_period_open(struct mw_policy *policy, struct mw_core *core);
enum mw_action mw_overflow(struct mw_policy *policy, struct mw_core *core,
			   enum mw_resource resource, u64 used);
enum mw_action mw_release(struct mw_policy *policy, struct mw_core *core);

void mw_expect_stop(struct mw_core *core, enum mw_resource resource, u64 events);
u64 mw_owe(struct mw_core *core, enum mw_resource resource, u64 used, u64 held,
	   u64 allowed);
void mw_settle_stop(struct mw_core *core, enum mw_resource resource, u64 used,
		    u64 held, u64 allowed);
u64 mw_until_overflow(const struct mw_core *core, enum mw_resource resource);
struct mw_census mw_census_read(const struct mw_policy *policy);
u64 mw_pool_read(const struct mw_policy *policy, enum mw_resource resource);

/* Fraction bits of @stop in struct mw_account. */
#define MW_STOP_SHIFT 8

/**
 * mw_stop_events() - events that a stop is expected to use
 * @core: the core
 * @resource: reads or writes
 *
 * Return: events from an overflow to the end of its period, at most half of
 * @assigned. The overflow is charged with them.
 */
static inline u64 mw_stop_events(const struct mw_core *core,
				 enum mw_resource resource)
{
	const struct mw_account *account = &core->account[resource];
	u64 stop = account->stop >> MW_STOP_SHIFT, half = account->assigned >> 1;

	return stop < half ? stop : half;
}

/* A resting core keeps this fraction of its budget, as a shift. */
#define MW_REST_SHIFT 5

/**
 * mw_rest_events() - events that a resting core may use in a period
 * @core: the core
 * @resource: reads or writes
 *
 * Return: events, at least 1.
 */
static inline u64 mw_rest_events(const struct mw_core *core,
				 enum mw_resource resource)
{
	u64 keep = core->account[resource].budget >> MW_REST_SHIFT;

	return keep ? keep : 1;
}

/**
 * mw_allowed() - events of this period for the core's tasks and its stop
 * @core: the core
 * @resource: reads or writes
 *
 * Return: events assigned so far, without those that repay earlier periods.
 */
static inline u64 mw_allowed(const struct mw_core *core,
			     enum mw_resource resource)
{
	const struct mw_account *account = &core->account[resource];

	return account->assigned - account->repaid;
}

/**
 * mw_used_up() - are all allowed events used, including those of a stop?
 * @core: the core
 * @resource: reads or writes
 * @used: events counted in this period
 *
 * Return: whether mw_overflow() would treat the budget as used up.
 */
static inline bool mw_used_up(const struct mw_core *core,
			      enum mw_resource resource, u64 used)
{
	return used + mw_stop_events(core, resource) >=
	       mw_allowed(core, resource);
}

/**
 * mw_counted() - record how many events are used, without a decision
 * @core: the core
 * @resource: reads or writes
 * @used: events counted in this period
 *
 * For a host that arms its counter after the period has begun:
 * mw_until_overflow() uses this value.
 */
static inline void mw_counted(struct mw_core *core, enum mw_resource resource,
			      u64 used)
{
	core->account[resource].used = used;
}

#endif /* MEMWARDEN_POLICY_H */
