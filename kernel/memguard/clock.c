// SPDX-License-Identifier: GPL-2.0-only
/*
 * The clock that all cores use, and the budgets in force in each of its periods. Both change under
 * one sequence count: a core never sees a new period length with an old budget, and all cores
 * change in the same period. A core without a timer offers events of its old budget until it has
 * looked.
 *
 * New budgets are in force from a period on that no core has joined. Best effort opens a period in
 * the policy's census before the clock shows it. So the writer opens the sequence count first and
 * then reads the census, and a core joins a period first and then reads its budgets: either the
 * writer sees that the period is open, or the core sees the writer.
 */
#include <linux/ktime.h>
#include <linux/math64.h>

#include "memguard.h"

/*
 * How many periods best effort may be ahead of the clock: a few, until mg_clock_restart() has run.
 * More is a census that has been left behind, since all cores were offline or had no timer.
 */
#define AHEAD_MAX 64

static u64 periods_since_phase(const struct mg_clock *clock, u64 now)
{
	/* Another core may have set the phase after @now was read. */
	return now > clock->phase ? div64_u64(now - clock->phase, clock->period_ns) : 0;
}

static u64 clock_number(const struct mg_clock *clock, u64 now)
{
	return clock->number + periods_since_phase(clock, now);
}

/* How far the period @epoch of the policy is ahead of @number; from half the circle on: behind. */
static u64 ahead_of(u64 number, u64 epoch)
{
	return (epoch - number) & MW_EPOCH_MASK;
}

/* The number of the period that the policy calls @epoch, if that is open ahead of the clock. */
static u64 number_ahead(u64 number, u64 epoch)
{
	u64 ahead = ahead_of(number, epoch);

	return ahead <= AHEAD_MAX ? number + ahead : number;
}

/* The number of the period that a core has joined, by a clock that is near it on the circle. */
static u64 number_joined(u64 number, u64 epoch)
{
	u64 ahead = ahead_of(number, epoch);

	return number + ahead - (ahead < MG_HALF_A_CIRCLE ? 0 : 2 * MG_HALF_A_CIRCLE);
}

/*
 * Reads the clock and the budgets of the period that it shows, or of the one that the policy calls
 * *@joined, and passes new budgets to the policy. Returns the sequence count of this read.
 */
static unsigned int read_anew(struct mg_core *core, u64 now, const u64 *joined,
			      struct mg_clock *clock)
{
	u64 budget[MW_RESOURCES], generation, number;
	unsigned int seq;
	bool late;
	int r;

	do {
		seq = read_seqcount_begin(&mg_guard.clock_seq);
		*clock = mg_guard.clock;
		number = clock_number(clock, now);
		if (joined)
			number = number_joined(number, *joined);
		generation = clock->generation - (number < clock->from);
		/* Two changes since the core joined: the budget of neither may be exceeded. */
		late = number < clock->previous_from;
		for (r = 0; r < MW_RESOURCES; r++)
			budget[r] = late ? min(core->budget[0][r], core->budget[1][r]) :
					   core->budget[generation & 1][r];
	} while (read_seqcount_retry(&mg_guard.clock_seq, seq));

	if (generation != core->generation || late) {
		/* The next read passes its budgets in any case. */
		core->generation = late ? U64_MAX : generation;
		for (r = 0; r < MW_RESOURCES; r++) {
			bool was = core->policy.account[r].budget != MW_UNLIMITED;
			bool is = budget[r] != MW_UNLIMITED;

			core->limits_changed |= was != is;
			mw_set_budget(&core->policy, r, budget[r]);
		}
	}
	core->pending = generation != clock->generation;
	return seq;
}

/**
 * mg_clock_read() - determine this core's current period and its budgets
 * @core: of this CPU, interrupts off; @number, @next, @phase and @period_ns are updated
 * @now: ns, monotonic
 *
 * Passes budgets that take effect with this period to the policy.
 */
void mg_clock_read(struct mg_core *core, u64 now)
{
	struct mg_clock clock;
	unsigned int seq;
	u64 passed;

	if (mg_clock_step(core, now))
		return;
	seq = read_anew(core, now, NULL, &clock);
	passed = periods_since_phase(&clock, now);
	core->number = clock.number + passed;
	core->phase = clock.phase;
	core->period_changed |= core->period_ns && core->period_ns != clock.period_ns;
	core->period_ns = clock.period_ns;
	core->next = clock.phase + (passed + 1) * clock.period_ns;
	core->clock_seq = core->pending ? MG_READ_ANEW : seq;
}

/**
 * mg_clock_joined() - determine the budgets of the period that the core has joined
 * @core: of this CPU, interrupts off; after mg_clock_read() and mw_period_join()
 * @now: ns, monotonic
 *
 * They may be newer than those of mg_clock_read() if best effort has opened that period ahead of
 * the clock, or if a hypervisor or firmware stopped this CPU since @now: for less than 1024 periods
 * (LATE_PERIODS in policy.c; a core that is later than that opens the period that it has read). The
 * core reads the clock again at its next look.
 */
void mg_clock_joined(struct mg_core *core, u64 now)
{
	u64 epoch = core->policy.epoch, ahead = ahead_of(core->number, epoch);
	struct mg_clock clock;

	/* Half a circle ahead is a core that slept that long (see join_period()). */
	if (likely(!ahead || ahead >= MG_HALF_A_CIRCLE))
		return;
	/* Pairs with the barrier in open_clock(): the budgets are read after the census. */
	smp_mb();
	read_anew(core, now, &epoch, &clock);
	core->clock_seq = MG_READ_ANEW;
}

/**
 * mg_clock_phase() - when the clock was last set
 *
 * Return: ns, monotonic.
 */
u64 mg_clock_phase(void)
{
	unsigned int seq;
	u64 phase;

	do {
		seq = read_seqcount_begin(&mg_guard.clock_seq);
		phase = mg_guard.clock.phase;
	} while (read_seqcount_retry(&mg_guard.clock_seq, seq));
	return phase;
}

/**
 * mg_clock_restart() - begin the period that best effort has opened now
 * @epoch: its number on the policy's circle
 * @now: ns, monotonic
 *
 * Interrupts are off.
 */
void mg_clock_restart(u64 epoch, u64 now)
{
	struct mg_clock *clock = &mg_guard.clock;
	u64 number, ahead;

	raw_spin_lock(&mg_guard.clock_lock);
	/* A core that opened a later period may have been here first. */
	if (now > clock->phase) {
		number = clock_number(clock, now);
		ahead = ahead_of(number, epoch);
		write_seqcount_begin(&mg_guard.clock_seq);
		clock->number = number + (ahead < MG_HALF_A_CIRCLE ? ahead : 0);
		clock->phase = now;
		write_seqcount_end(&mg_guard.clock_seq);
	}
	raw_spin_unlock(&mg_guard.clock_lock);
}

/* The clock's lock is held. Later changes replace changes that are not yet in force. */
static void publish(u64 from)
{
	struct mg_clock *clock = &mg_guard.clock;
	int cpu, r;

	if (clock->from < from) {
		clock->previous_from = clock->from;
		clock->from = from;
		clock->generation++;
	}
	for_each_possible_cpu(cpu) {
		struct mg_core *core = &per_cpu(mg_cores, cpu);

		for (r = 0; r < MW_RESOURCES; r++)
			core->budget[clock->generation & 1][r] = core->wanted[r];
	}
}

/*
 * Begins a change. Returns the latest period that a core may have joined: a core that read the
 * clock before this did so before *@now.
 */
static u64 open_clock(u64 *now)
{
	write_seqcount_begin(&mg_guard.clock_seq);
	/* Pairs with the barrier in mg_clock_joined(): the census is read after this. */
	smp_mb();
	*now = ktime_get_ns();
	return number_ahead(clock_number(&mg_guard.clock, *now),
			    mw_census_read(&mg_guard.policy).epoch);
}

/**
 * mg_clock_set_budgets() - put every core's wanted budgets in force with the next period
 *
 * All cores change in the same period. The caller holds the settings mutex and kicks all cores.
 */
void mg_clock_set_budgets(void)
{
	unsigned long flags;
	u64 now;

	raw_spin_lock_irqsave(&mg_guard.clock_lock, flags);
	publish(open_clock(&now) + 1);
	write_seqcount_end(&mg_guard.clock_seq);
	raw_spin_unlock_irqrestore(&mg_guard.clock_lock, flags);
}

/**
 * mg_clock_set_period() - begin a period of a new length now, with the wanted budgets
 * @period_ns: the length
 *
 * The caller holds the settings mutex and kicks all cores.
 */
void mg_clock_set_period(u64 period_ns)
{
	struct mg_clock *clock = &mg_guard.clock;
	unsigned long flags;
	u64 now;

	raw_spin_lock_irqsave(&mg_guard.clock_lock, flags);
	clock->number = open_clock(&now) + 1;
	clock->phase = now;
	clock->period_ns = period_ns;
	publish(clock->number);
	write_seqcount_end(&mg_guard.clock_seq);
	raw_spin_unlock_irqrestore(&mg_guard.clock_lock, flags);
}
