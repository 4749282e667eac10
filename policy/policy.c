// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The regulator's decisions. policy.h documents them and the calling rules. The
 * functions follow the life of a period: words, settings, coming and going,
 * beginning, overflow, release.
 */
#include "policy.h"

#define EPOCH_MASK MW_EPOCH_MASK
#define EPOCH_SHIFT 43
#define RELEASED_SHIFT 42
#define FIELD_BITS 14
#define FIELD_MASK ((1ULL << FIELD_BITS) - 1)
#define POOL_MASK ((1ULL << EPOCH_SHIFT) - 1)

/*
 * Four fraction bits keep a prediction that is halved each period from settling
 * one event below a steady need, or one event above zero.
 */
#define PREDICTION_SHIFT 4
#define PREDICTION_ONE (1ULL << PREDICTION_SHIFT)

/* A donor keeps this fraction of its prediction as a margin. */
#define KEEP_SHIFT 5

/* Without a qmin, a chunk from the pool is this fraction of the budget. */
#define QMIN_SHIFT 4

static u64 word_epoch(u64 word)
{
	return word >> EPOCH_SHIFT;
}

static u64 next_epoch(u64 epoch)
{
	return (epoch + 1) & EPOCH_MASK;
}

/*
 * Is @a before @b, on a circle of 2^21 periods? A late core is late by a few
 * periods only, but a clock may jump by any number of them (a paused machine).
 * So only this small part of the circle counts as past; the rest is ahead.
 */
#define LATE_PERIODS (1ULL << 10)

static bool epoch_before(u64 a, u64 b)
{
	return ((a - b) & EPOCH_MASK) >= LATE_PERIODS;
}

static struct mw_census census_unpack(u64 word)
{
	struct mw_census census = {
		.epoch = word_epoch(word),
		.released = word >> RELEASED_SHIFT & 1,
		.online = (u32)(word >> 2 * FIELD_BITS & FIELD_MASK),
		.active = (u32)(word >> FIELD_BITS & FIELD_MASK),
		.exhausted = (u32)(word & FIELD_MASK),
	};

	return census;
}

static u64 census_pack(const struct mw_census *census)
{
	return census->epoch << EPOCH_SHIFT |
	       (u64)census->released << RELEASED_SHIFT |
	       (u64)census->online << 2 * FIELD_BITS |
	       (u64)census->active << FIELD_BITS | census->exhausted;
}

/* In a new epoch every online core is presumed active until it reports idle. */
static void census_open(struct mw_census *census, u64 epoch)
{
	census->epoch = epoch;
	census->released = false;
	census->active = census->online;
	census->exhausted = 0;
}

static bool all_exhausted(const struct mw_census *census)
{
	return census->exhausted && census->exhausted == census->active;
}

/*
 * Best effort's action once all active cores are exhausted. The swap that
 * completes the condition records it. A released period stays released.
 */
static enum mw_action share_best_effort(u64 mode, struct mw_census *census)
{
	if (census->released || !all_exhausted(census))
		return MW_CONTINUE;
	if (mode == MW_SPARE) {
		census->released = true;
		return MW_RELEASE_ALL;
	}
	if (mode == MW_PROPORTIONAL) {
		census_open(census, next_epoch(census->epoch));
		return MW_NEW_PERIOD;
	}
	return MW_CONTINUE;
}

/*
 * Each pool starts with what resting cores offer. The caller must have seen the
 * census in the pool's epoch before this load: see stop_offering().
 */
static u64 offers(const struct mw_policy *policy, int r)
{
	u64 events = mw_load(&policy->offered[r]);

	return events < POOL_MASK ? events : POOL_MASK;
}

static void offers_add(mw_atomic64 *offered, u64 events)
{
	u64 sum = mw_load(offered);

	while (events && !mw_cas(offered, &sum, sum + events))
		;
}

/* Opening the next epoch's pool drops donations of past epochs. */
static void pool_open(struct mw_policy *policy, int r, u64 epoch)
{
	u64 word = mw_load(&policy->pool[r]);

	while (epoch_before(word_epoch(word), epoch))
		if (mw_cas(&policy->pool[r], &word,
			   epoch << EPOCH_SHIFT | offers(policy, r)))
			break;
}

static void pools_open(struct mw_policy *policy, u64 epoch)
{
	int r;

	for (r = 0; r < MW_RESOURCES; r++)
		pool_open(policy, r, epoch);
}

/* Returns how many events the pool accepted: 0 if it is in a later epoch. */
static u64 pool_donate(struct mw_policy *policy, int r, u64 epoch, u64 events)
{
	mw_atomic64 *pool = &policy->pool[r];
	u64 word = mw_load(pool);
	u64 held, accepted;

	do {
		if (epoch_before(epoch, word_epoch(word)))
			return 0;
		held = word_epoch(word) == epoch ? word & POOL_MASK :
						   offers(policy, r);
		accepted = POOL_MASK - held;
		if (accepted > events)
			accepted = events;
	} while (!mw_cas(pool, &word, epoch << EPOCH_SHIFT | (held + accepted)));
	return accepted;
}

static u64 pool_take(mw_atomic64 *pool, u64 epoch, u64 want)
{
	u64 word = mw_load(pool);
	u64 taken;

	do {
		if (word_epoch(word) != epoch || !(word & POOL_MASK))
			return 0;
		taken = word & POOL_MASK;
		if (taken > want)
			taken = want;
	} while (!mw_cas(pool, &word, word - taken));
	return taken;
}

/**
 * mw_policy_init() - start with no cores, no donation, strict reservation
 * @policy: state that all cores will share
 */
void mw_policy_init(struct mw_policy *policy)
{
	int r;

	mw_store(&policy->census, 0);
	for (r = 0; r < MW_RESOURCES; r++) {
		mw_store(&policy->pool[r], 0);
		mw_store(&policy->offered[r], 0);
	}
	mw_store(&policy->best_effort, MW_NONE);
	mw_store(&policy->reclaim, 0);
	mw_store(&policy->qmin, 0);
}

/**
 * mw_core_init() - initialise an offline core without limits
 * @core: the core
 */
void mw_core_init(struct mw_core *core)
{
	const struct mw_core blank = { .epoch = 0 };
	int r;

	*core = blank;
	for (r = 0; r < MW_RESOURCES; r++) {
		core->account[r].budget = MW_UNLIMITED;
		mw_store(&core->account[r].next_budget, MW_UNLIMITED);
	}
}

/**
 * mw_set_budget() - reserve events per period, from the next period on
 * @core: whose budget; any thread may call this
 * @resource: reads or writes
 * @events: 1 .. MW_UNLIMITED
 *
 * Return: 0, or -EINVAL with nothing changed.
 */
int mw_set_budget(struct mw_core *core, enum mw_resource resource, u64 events)
{
	if (!events || events > MW_UNLIMITED)
		return -EINVAL;
	mw_store(&core->account[resource].next_budget, events);
	return 0;
}

/**
 * mw_set_best_effort() - choose the sharing mode, effective at the next overflow
 * @policy: shared state
 * @mode: one of enum mw_best_effort
 *
 * Return: 0, or -EINVAL with nothing changed.
 */
int mw_set_best_effort(struct mw_policy *policy, u64 mode)
{
	if (mode != MW_NONE && mode != MW_SPARE && mode != MW_PROPORTIONAL)
		return -EINVAL;
	mw_store(&policy->best_effort, mode);
	return 0;
}

/**
 * mw_set_reclaim() - turn donation and reclaim on or off
 * @policy: shared state
 * @on: 0 or 1
 *
 * Takes effect on each core when its next period begins.
 *
 * Return: 0, or -EINVAL with nothing changed.
 */
int mw_set_reclaim(struct mw_policy *policy, u64 on)
{
	if (on > 1)
		return -EINVAL;
	mw_store(&policy->reclaim, on);
	return 0;
}

/**
 * mw_set_qmin() - set the smallest chunk that an overflow takes from the pool
 * @policy: shared state
 * @events: up to MW_UNLIMITED; 0 means 1/16 of the taker's budget
 *
 * Return: 0, or -EINVAL with nothing changed.
 */
int mw_set_qmin(struct mw_policy *policy, u64 events)
{
	if (events > MW_UNLIMITED)
		return -EINVAL;
	mw_store(&policy->qmin, events);
	return 0;
}

/**
 * mw_set_rt() - exempt a core from throttling; its events are still counted
 * @core: the core; any thread may call this
 * @rt: exempt or not
 *
 * The next mw_release() releases the core if it is throttled now.
 */
void mw_set_rt(struct mw_core *core, bool rt)
{
	mw_store(&core->rt, rt);
}

/* A core owes at most 2^OWED_SHIFT periods' budgets. */
#define OWED_SHIFT 10

/*
 * Close the period's books and update the prediction. In @more further periods
 * the host began none for the core; what the core left unused in them also
 * repays what it owes.
 */
static __always_inline void
account_close(struct mw_account *account, u64 used, u64 more)
{
	u64 allowed = account->assigned - account->repaid;
	u64 over = used > allowed ? used - allowed : 0;
	u64 repaid = account->repaid, left;

	account->used = used;
	account->total_used += used;
	if (account->assigned < MW_UNLIMITED) {
		account->total_assigned += account->assigned;
		account->total_donated += more * account->offered;
		left = more * (account->budget - account->offered);
		repaid += left > over ? left - over : 0;
	}
	account->owed -= repaid < account->owed ? repaid : account->owed;
	/* Low use does not mean low need: the repayment kept tasks from running. */
	if (account->repaid)
		return;
	if (used > MW_UNLIMITED)
		used = MW_UNLIMITED;
	account->prediction =
		((account->prediction + (used << PREDICTION_SHIFT)) >> 1) +
		(account->shortfall << PREDICTION_SHIFT);
}

/* Keep the predicted need and donate the rest; returns how many events. */
static u64 donate(struct mw_policy *policy, struct mw_core *core, int r)
{
	struct mw_account *account = &core->account[r];
	u64 keep;

	if (!core->reclaim)
		return 0;
	/*
	 * Keep a margin. A need at or near the prediction must not cause an
	 * overflow: that would make the prediction look too small, and an
	 * overflow costs more than the period's timer.
	 */
	keep = (account->prediction + PREDICTION_ONE - 1) >> PREDICTION_SHIFT;
	keep += (keep >> KEEP_SHIFT) + 1 + account->repaid;
	if (keep >= account->budget)
		return 0;
	return pool_donate(policy, r, core->epoch, account->budget - keep);
}

/* How much this period repays. Holding the core costs events, too: leave room for a stop. */
static u64 repay(struct mw_account *account)
{
	u64 stop = account->stop >> MW_STOP_SHIFT, half = account->budget >> 1;
	u64 most = account->budget - (stop < half ? stop : half);

	if (account->owed > account->budget << OWED_SHIFT)
		account->owed = account->budget << OWED_SHIFT;
	return account->owed < most ? account->owed : most;
}

/* Open the period's books. */
static void account_open(struct mw_policy *policy, struct mw_core *core, int r)
{
	struct mw_account *account = &core->account[r];
	u64 offered = account->offered;

	/* If a pool may include the offer, this period keeps the budget of that time. */
	if (offered && epoch_before(core->offers_end, core->epoch))
		offered = 0;
	if (!offered)
		account->budget = mw_load(&account->next_budget);
	account->used = 0;
	account->donated = 0;
	account->shortfall = 0;
	account->repaid = 0;
	account->offered = 0;
	if (account->budget == MW_UNLIMITED) {
		account->owed = 0;
	} else if (offered) {
		account->donated = offered;
		/* The next pool may include the offer, too. */
		if (core->offers_end != core->epoch)
			account->offered = offered;
	} else {
		account->repaid = repay(account);
		account->donated = donate(policy, core, r);
	}
	account->assigned = account->budget - account->donated;
	account->total_donated += account->donated;
}

static __always_inline void
core_open(struct mw_policy *policy, struct mw_core *core, u64 epoch, bool active)
{
	int r;

	core->epoch = epoch;
	core->active = active;
	core->exhausted = false;
	core->throttled = false;
	core->best_effort = false;
	core->reclaim = mw_load(&policy->reclaim);
	for (r = 0; r < MW_RESOURCES; r++)
		account_open(policy, core, r);
}

/*
 * A core sees the census in a pool's epoch before it reads the offers and opens
 * the pool. So once the offer is withdrawn, only pools up to the census's epoch
 * may include it; later ones do not.
 */
static void stop_offering(struct mw_policy *policy, struct mw_core *core)
{
	int r;

	for (r = 0; r < MW_RESOURCES; r++)
		offers_add(&policy->offered[r], 0 - core->account[r].offered);
	core->resting = false;
	core->offers_end = word_epoch(mw_load(&policy->census));
}

/* In the middle of a period. Only a later period's pool may include the offer. */
static void rest_no_more(struct mw_policy *policy, struct mw_core *core)
{
	int r;

	stop_offering(policy, core);
	for (r = 0; r < MW_RESOURCES; r++)
		if (core->offers_end == core->epoch)
			core->account[r].offered = 0;
}

/**
 * mw_core_online() - take part from now on, in the middle of a period
 * @policy: shared state
 * @core: an initialised core; nothing changes if it is already online
 *
 * The core starts with its whole budget and donates nothing until it has a
 * history.
 */
void mw_core_online(struct mw_policy *policy, struct mw_core *core)
{
	struct mw_census census;
	u64 word;
	int r;

	if (core->online)
		return;
	word = mw_load(&policy->census);
	do {
		census = census_unpack(word);
		census.online++;
		census.active++;
	} while (!mw_cas(&policy->census, &word, census_pack(&census)));

	for (r = 0; r < MW_RESOURCES; r++) {
		core->account[r].prediction =
			mw_load(&core->account[r].next_budget)
			<< PREDICTION_SHIFT;
		core->account[r].owed = 0;
		core->account[r].offered = 0;
	}
	core->away = false;
	core->resting = false;
	core->online = true;
	core_open(policy, core, census.epoch, true);
}

/**
 * mw_core_offline() - leave the census and the pool; end a throttle
 * @policy: shared state
 * @core: an online core
 *
 * Donations that no core has taken leave the pool with their donor, so that
 * assigned events stay within the budgets of the remaining cores.
 *
 * Return: MW_CONTINUE, or MW_RELEASE_ALL or MW_NEW_PERIOD if the other cores
 * were waiting for this core alone.
 */
enum mw_action mw_core_offline(struct mw_policy *policy, struct mw_core *core)
{
	struct mw_census census;
	enum mw_action action;
	u64 mode, word;
	int r;

	if (!core->online)
		return MW_CONTINUE;
	mode = mw_load(&policy->best_effort);
	word = mw_load(&policy->census);
	do {
		/* A later epoch presumes this core active. */
		bool later;

		census = census_unpack(word);
		later = census.epoch != core->epoch;
		if (!core->away) {
			census.online--;
			if (core->active || later)
				census.active--;
		}
		if (core->exhausted && !later)
			census.exhausted--;
		action = share_best_effort(mode, &census);
	} while (!mw_cas(&policy->census, &word, census_pack(&census)));

	if (action == MW_NEW_PERIOD)
		pools_open(policy, census.epoch);
	if (core->resting)
		stop_offering(policy, core);
	for (r = 0; r < MW_RESOURCES; r++) {
		struct mw_account *account = &core->account[r];

		pool_take(&policy->pool[r], core->epoch, account->donated);
		account->donated = 0;
		/* Open it first, so that no late core adds the offer to it. */
		if (account->offered && core->offers_end != core->epoch) {
			pool_open(policy, r, core->offers_end);
			pool_take(&policy->pool[r], core->offers_end,
				  account->offered);
		}
		account->offered = 0;
	}
	core->online = false;
	core->active = false;
	core->exhausted = false;
	core->throttled = false;
	core->best_effort = false;
	return action;
}

/**
 * mw_core_active() - the core has left idle
 * @policy: shared state
 * @core: an online core
 *
 * Cheap if the core already counts as active in this period.
 */
void mw_core_active(struct mw_policy *policy, struct mw_core *core)
{
	u64 word;
	struct mw_census census;

	if (core->active || !core->online)
		return;
	word = mw_load(&policy->census);
	do {
		census = census_unpack(word);
		/* A later epoch already presumes this core active. */
		if (!core->away && census.epoch != core->epoch)
			break;
		census.online += core->away;
		census.active++;
	} while (!mw_cas(&policy->census, &word, census_pack(&census)));
	core->active = true;
	core->away = false;
}

/**
 * mw_core_away() - the core is idle, and its host will begin no period for it
 * @policy: shared state
 * @core: an online core; nothing changes if it is exhausted
 *
 * No period presumes the core active until mw_core_active() or
 * mw_period_begin().
 *
 * Return: MW_CONTINUE, or MW_RELEASE_ALL or MW_NEW_PERIOD if the other cores
 * were waiting for this core alone; it takes no part in the period that begins
 * then.
 */
enum mw_action mw_core_away(struct mw_policy *policy, struct mw_core *core)
{
	struct mw_census census;
	enum mw_action action;
	u64 mode, word;

	if (!core->online || core->away || core->exhausted)
		return MW_CONTINUE;
	mode = mw_load(&policy->best_effort);
	word = mw_load(&policy->census);
	do {
		census = census_unpack(word);
		census.online--;
		if (core->active || census.epoch != core->epoch)
			census.active--;
		action = share_best_effort(mode, &census);
	} while (!mw_cas(&policy->census, &word, census_pack(&census)));

	core->active = false;
	core->away = true;
	if (action == MW_NEW_PERIOD)
		pools_open(policy, census.epoch);
	return action;
}

/**
 * mw_core_rest() - the host will begin no period for the core for a while
 * @policy: shared state
 * @core: an online core, neither throttled nor exhausted
 *
 * The host must ensure that the core uses no more than mw_rest_events() in a
 * period. The rest of its budget is donated in each period that begins without
 * it, until mw_period_begin(). The core donates nothing if its budget is about
 * to change or if it owes events.
 *
 * The core does not rest (see @resting of struct mw_core) if other cores are in
 * a later period, or if a coming period's pool may still include its last
 * offer: it has to begin that period first.
 */
void mw_core_rest(struct mw_policy *policy, struct mw_core *core)
{
	bool reclaim = mw_load(&policy->reclaim);
	int r;

	if (!core->online || core->resting)
		return;
	/* A coming period's pool may still include the last offer. */
	for (r = 0; r < MW_RESOURCES; r++)
		if (core->account[r].offered)
			return;
	/* A later pool that is already open does not include this core's offer. */
	if (mw_census_read(policy).epoch != core->epoch)
		return;
	/* This period's pool must not include it either: the core keeps its whole budget. */
	pools_open(policy, core->epoch);
	for (r = 0; r < MW_RESOURCES; r++) {
		struct mw_account *account = &core->account[r];

		if (!reclaim || account->budget == MW_UNLIMITED ||
		    account->owed ||
		    account->budget != mw_load(&account->next_budget))
			continue;
		account->offered = account->budget - mw_rest_events(core, r);
		offers_add(&policy->offered[r], account->offered);
	}
	core->resting = true;
}

/* The functions of this path are inlined: mw_period_begin() is a host's hot path. */
static __always_inline enum mw_action
period_join(struct mw_policy *policy, struct mw_core *core, u64 number,
	    bool idle, const u64 used[MW_RESOURCES])
{
	struct mw_census census;
	enum mw_action action;
	u64 mode, word, more;
	bool opened;
	int r;

	if (!core->online)
		return MW_CONTINUE;
	if (core->away)
		mw_core_active(policy, core);
	mode = mw_load(&policy->best_effort);
	word = mw_load(&policy->census);
	do {
		census = census_unpack(word);
		action = MW_CONTINUE;
		opened = false;
		if (epoch_before(census.epoch, number & EPOCH_MASK)) {
			census_open(&census, number & EPOCH_MASK);
			opened = true;
		} else if (census.epoch == core->epoch) {
			if (core->resting)
				rest_no_more(policy, core);
			return MW_CONTINUE;
		}
		if (idle) {
			census.active--;
			action = share_best_effort(mode, &census);
			if (action == MW_NEW_PERIOD) {
				census.active--;
				opened = true;
			}
		}
		/* Joining without leaving the census changes nothing. */
		if (!opened && !idle)
			break;
	} while (!mw_cas(&policy->census, &word, census_pack(&census)));

	/* Open the pools while the offer stands, so that they surely include it. */
	if (opened || core->resting)
		pools_open(policy, census.epoch);
	if (core->resting)
		stop_offering(policy, core);
	more = (census.epoch - core->epoch - 1) & EPOCH_MASK;
	for (r = 0; r < MW_RESOURCES; r++)
		account_close(&core->account[r], used[r], more);
	core->epoch = census.epoch;
	core->active = !idle;
	return action == MW_CONTINUE ? MW_RUN : action;
}

/**
 * mw_period_join() - end the core's period and join the next
 * @policy: shared state
 * @core: the core
 * @number: as in mw_period_begin()
 * @idle: as in mw_period_begin()
 * @used: as in mw_period_begin()
 *
 * For a host whose budgets depend on the period that the core joins: @number is
 * only the earliest one. Unless this returns MW_CONTINUE, the host settles the
 * ended period (mw_settle_stop(), mw_owe()), and calls mw_set_budget() and
 * mw_period_open() before any other function that takes the core.
 *
 * Return: as mw_period_begin().
 */
enum mw_action mw_period_join(struct mw_policy *policy, struct mw_core *core,
			      u64 number, bool idle,
			      const u64 used[MW_RESOURCES])
{
	return period_join(policy, core, number, idle, used);
}

/**
 * mw_period_open() - open the books of the period that the core has joined
 * @policy: shared state
 * @core: the core; it is not throttled afterwards
 *
 * Called after mw_period_join() or mw_core_online().
 */
void mw_period_open(struct mw_policy *policy, struct mw_core *core)
{
	core_open(policy, core, core->epoch, core->active);
}

/**
 * mw_period_begin() - end the core's period and begin the next
 * @policy: shared state
 * @core: the core; it is not throttled afterwards
 * @number: number of the period that the host's clock is in. The first core to
 *	reach it opens it; other cores join it, or a later one that best effort
 *	has opened meanwhile
 * @idle: the core is idle now
 * @used: events counted in the ended period, by resource
 *
 * Return: MW_RUN normally; MW_CONTINUE if the core is already in that period;
 * MW_RELEASE_ALL or MW_NEW_PERIOD if this core is idle and the other cores were
 * waiting for it alone (this core has then begun the period, too).
 */
enum mw_action mw_period_begin(struct mw_policy *policy, struct mw_core *core,
			       u64 number, bool idle,
			       const u64 used[MW_RESOURCES])
{
	enum mw_action action = period_join(policy, core, number, idle, used);

	if (action != MW_CONTINUE)
		core_open(policy, core, core->epoch, core->active);
	return action;
}

/* Take back own donations or a chunk, whichever is more, as far as available. */
static bool account_reclaim(struct mw_policy *policy, struct mw_core *core,
			    enum mw_resource resource)
{
	struct mw_account *account = &core->account[resource];
	u64 chunk = mw_load(&policy->qmin);
	u64 used = account->used + mw_stop_events(core, resource) +
		   account->repaid;
	u64 taken;

	if (!chunk)
		chunk = account->budget >> QMIN_SHIFT;
	if (!chunk)
		chunk = 1;
	if (chunk < account->donated)
		chunk = account->donated;
	taken = pool_take(&policy->pool[resource], core->epoch,
			  used - account->assigned + chunk);
	account->assigned += taken;
	account->total_reclaimed += taken;
	account->donated -= taken < account->donated ? taken : account->donated;
	return !mw_used_up(core, resource, account->used);
}

/* Count the core as exhausted; returns what follows for all cores. */
static enum mw_action exhaust(struct mw_policy *policy, struct mw_core *core)
{
	u64 mode = mw_load(&policy->best_effort);
	u64 word = mw_load(&policy->census);
	struct mw_census census;
	enum mw_action action;

	do {
		census = census_unpack(word);
		/* Other cores are already in a later period; this one is about to end. */
		if (census.epoch != core->epoch)
			return MW_CONTINUE;
		/* Interrupts on an idle core can use up its budget. */
		if (!core->active)
			census.active++;
		census.exhausted++;
		/* A core that wakes or comes online after the release shares, too. */
		action = census.released ? MW_RUN :
					   share_best_effort(mode, &census);
	} while (!mw_cas(&policy->census, &word, census_pack(&census)));

	core->active = true;
	if (action == MW_NEW_PERIOD)
		pools_open(policy, census.epoch);
	return action;
}

/**
 * mw_overflow() - the core has used the events that it was armed for
 * @policy: shared state
 * @core: an online core
 * @resource: whose counter overflowed
 * @used: events counted in this period
 *
 * Contains no division and no loop over cores.
 *
 * Return: MW_RUN (arm the counter with mw_until_overflow()), MW_THROTTLE,
 * MW_RELEASE_ALL or MW_NEW_PERIOD.
 */
enum mw_action mw_overflow(struct mw_policy *policy, struct mw_core *core,
			   enum mw_resource resource, u64 used)
{
	struct mw_account *account = &core->account[resource];
	enum mw_action action;

	if (!core->online)
		return MW_CONTINUE;
	/* An idle core's interrupts are charged to it. */
	if (core->away)
		mw_core_active(policy, core);
	account->used = used;
	if (core->throttled)
		return MW_THROTTLE;
	if (core->best_effort || core->exhausted ||
	    !mw_used_up(core, resource, used))
		return MW_RUN;
	/* A donor may take its events back even if reclaim is off by now. */
	if ((core->reclaim || account->donated) &&
	    account_reclaim(policy, core, resource))
		return MW_RUN;

	action = exhaust(policy, core);
	core->exhausted = true;
	if (action == MW_RELEASE_ALL || action == MW_RUN)
		core->best_effort = true;
	if (action != MW_CONTINUE)
		return action;
	/* A real-time core has used its budget, but continues. */
	if (mw_load(&core->rt))
		return MW_RUN;
	used += mw_stop_events(core, resource) + account->repaid;
	if (core->reclaim && used < account->budget) {
		account->reclaim_errors++;
		account->shortfall = account->budget - used;
	}
	core->throttled = true;
	return MW_THROTTLE;
}

/**
 * mw_expect_stop() - set what a stop uses, before the first one
 * @core: the core
 * @resource: whose overflow will stop it
 * @events: from such an overflow to the period's end
 */
void mw_expect_stop(struct mw_core *core, enum mw_resource resource, u64 events)
{
	if (events > MW_UNLIMITED)
		events = MW_UNLIMITED;
	core->account[resource].stop = events << MW_STOP_SHIFT;
}

/**
 * mw_owe() - record what tasks used before the throttle took hold
 * @core: the core
 * @resource: any that is counted
 * @used: events counted in the period
 * @held: events of @used counted before the core was held; @used if it never
 *	was
 * @allowed: mw_allowed() at the period's end
 *
 * Tasks may continue long after a throttle began, for example in a kernel that
 * cannot be preempted. A stop may use up to half a budget past @allowed;
 * whatever the tasks used beyond that is owed. Later periods leave them nothing
 * until it is repaid, up to 1024 budgets.
 *
 * Call this for periods that mw_settle_stop() does not see, and while the
 * period's budget is in force: before mw_period_begin(), or between
 * mw_period_join() and mw_period_open(). With another budget, a stop would seem
 * to have used more or less of it than it did.
 *
 * Return: the part of @used that is not owed.
 */
u64 mw_owe(struct mw_core *core, enum mw_resource resource, u64 used, u64 held,
	   u64 allowed)
{
	struct mw_account *account = &core->account[resource];
	u64 most = account->budget << OWED_SHIFT;
	u64 most_of_stop = allowed + (account->budget >> 1), owed;

	if (held > used)
		held = used;
	if (account->budget >= MW_UNLIMITED || held <= most_of_stop)
		return used;
	owed = held - most_of_stop;
	account->owed += owed < most ? owed : most;
	if (account->owed > most)
		account->owed = most;
	return used - owed;
}

/* 1/16 of a period's excess or shortfall counts for the next period. */
#define SETTLE_SHIFT 4
/* Later periods compensate for at most 2^EXPECTED_SHIFT budgets that stops used. */
#define EXPECTED_SHIFT 6

/**
 * mw_settle_stop() - learn what a stop uses, from a period that ended with one
 * @core: the core
 * @resource: whose overflow has stopped it
 * @used: as in mw_owe()
 * @held: as in mw_owe()
 * @allowed: as in mw_owe()
 *
 * The interrupt, the wake-up and the switch of a stop cause events, and so does
 * every interrupt that the core serves while it is held. What a period used
 * past @allowed, without what is owed, is charged to later overflows, up to
 * half a budget each. What a period left unused reduces that charge. So periods
 * that end with a stop use, on average, what was assigned, even if some stops
 * are expensive, as long as a stop uses at most half of the budget on average.
 *
 * A host that cannot tell, or whose stops use nothing, need not call this. It
 * has to be called when mw_owe() has.
 */
void mw_settle_stop(struct mw_core *core, enum mw_resource resource, u64 used,
		    u64 held, u64 allowed)
{
	struct mw_account *account = &core->account[resource];
	u64 most = account->budget << EXPECTED_SHIFT;
	u64 off;

	if (account->budget >= MW_UNLIMITED)
		return;
	used = mw_owe(core, resource, used, held, allowed);
	if (used > allowed) {
		off = used - allowed;
		if (off > most)
			off = most;
		account->stop += off << (MW_STOP_SHIFT - SETTLE_SHIFT);
	} else {
		off = (allowed - used) << (MW_STOP_SHIFT - SETTLE_SHIFT);
		account->stop -= off < account->stop ? off : account->stop;
	}
	most <<= MW_STOP_SHIFT - SETTLE_SHIFT;
	if (account->stop > most)
		account->stop = most;
}

/**
 * mw_release() - release a throttled core, if there is a reason to
 * @policy: shared state
 * @core: an online core
 *
 * Called on each core after a core returned MW_RELEASE_ALL, or when the core
 * becomes a real-time one. A late call, after the next period has begun, finds
 * the core running and changes nothing.
 *
 * Return: MW_RUN if the core was throttled and now runs, else MW_CONTINUE.
 */
enum mw_action mw_release(struct mw_policy *policy, struct mw_core *core)
{
	struct mw_census census = mw_census_read(policy);
	bool sharing = census.released && census.epoch == core->epoch;

	if (!core->throttled || !(sharing || mw_load(&core->rt)))
		return MW_CONTINUE;
	core->throttled = false;
	core->best_effort = sharing;
	return MW_RUN;
}

/**
 * mw_until_overflow() - events that the core may use before the next overflow
 * @core: the core
 * @resource: reads or writes
 *
 * Return: at least 1; MW_UNLIMITED if the core runs unregulated.
 */
u64 mw_until_overflow(const struct mw_core *core, enum mw_resource resource)
{
	const struct mw_account *account = &core->account[resource];

	if (account->budget == MW_UNLIMITED || core->best_effort ||
	    core->exhausted)
		return MW_UNLIMITED;
	if (mw_used_up(core, resource, account->used))
		return 1;
	return mw_allowed(core, resource) - account->used -
	       mw_stop_events(core, resource);
}

/**
 * mw_census_read() - how many cores are online, active and exhausted
 * @policy: shared state
 *
 * Return: a consistent snapshot.
 */
struct mw_census mw_census_read(const struct mw_policy *policy)
{
	return census_unpack(mw_load(&policy->census));
}

/**
 * mw_pool_read() - events donated in the pool's epoch and not yet taken
 * @policy: shared state
 * @resource: reads or writes
 *
 * Return: events.
 */
u64 mw_pool_read(const struct mw_policy *policy, enum mw_resource resource)
{
	return mw_load(&policy->pool[resource]) & POOL_MASK;
}
