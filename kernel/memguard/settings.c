// SPDX-License-Identifier: GPL-2.0-only
/*
 * Settings: checked as a whole first, then applied as a whole. Budgets keep the unit in which they
 * were written, so that a new period or guaranteed bandwidth yields the right number of events.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpu.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "memguard.h"

/* Inputs from which budgets are computed. */
struct basis {
	u64 period_us;
	u64 maxbw;
	u64 weights; /* sum over all cores, for one resource */
};

static struct basis present_basis(void)
{
	return (struct basis){
		.period_us = div_u64(mg_guard.clock.period_ns, NSEC_PER_USEC),
		.maxbw = mg_guard.maxbw,
	};
}

/* MiB/s to events per period, rounded down; mb <= MG_MB_LIMIT. */
static u64 mb_to_events(u64 mb, u64 period_us)
{
	return div_u64(div_u64((mb << 20) * period_us, USEC_PER_SEC),
		       mg_guard.bytes);
}

/**
 * mg_mb() - bandwidth that a budget allows
 * @events: per period
 *
 * Return: MiB/s, rounded to the nearest.
 */
u64 mg_mb(u64 events)
{
	u64 period_us = div_u64(mg_guard.clock.period_ns, NSEC_PER_USEC);
	u64 halves = mul_u64_u64_div_u64(events * mg_guard.bytes,
					 2 * USEC_PER_SEC, period_us << 20);

	return (halves + 1) >> 1;
}

/* Events per period; 0 if less than one. */
static u64 to_events(const struct mg_reservation *reservation,
		     const struct basis *basis)
{
	u64 events;

	switch (reservation->unit) {
	case MG_EVENTS:
		return reservation->value;
	case MG_MB:
		events = mb_to_events(reservation->value, basis->period_us);
		break;
	case MG_PCT:
		events = div_u64(mb_to_events(basis->maxbw, basis->period_us) *
					 reservation->value, 100);
		break;
	case MG_WEIGHT:
		events = div64_u64(mb_to_events(basis->maxbw, basis->period_us) *
					   reservation->value, basis->weights);
		break;
	default:
		return MW_UNLIMITED;
	}
	return min(events, MW_UNLIMITED - 1);
}

/* Planned settings of one resource on all cores. */
struct plan {
	struct mg_reservation *reservation; /* nr_cpu_ids elements */
	u64 *events;
};

static int plan_make(struct plan *plan, enum mw_resource resource)
{
	int cpu;

	plan->reservation = kcalloc(nr_cpu_ids, sizeof(*plan->reservation), GFP_KERNEL);
	plan->events = kcalloc(nr_cpu_ids, sizeof(*plan->events), GFP_KERNEL);
	if (!plan->reservation || !plan->events)
		return -ENOMEM;
	for_each_possible_cpu(cpu)
		plan->reservation[cpu] = per_cpu(mg_cores, cpu).reservation[resource];
	return 0;
}

/*
 * After the end of a throttle has used its events, at least half of the budget should remain. 0 if
 * the counter is not open.
 */
static u64 least_events(const struct mg_core *core, enum mw_resource resource)
{
	return core->counter[resource].event ? 2 * core->counter[resource].own : 0;
}

/**
 * mg_least_events() - the smallest budget that every core accepts
 * @resource: reads or writes
 *
 * Return: events per period.
 */
u64 mg_least_events(enum mw_resource resource)
{
	u64 least = 1;
	int cpu;

	for_each_mg_cpu(cpu)
		least = max(least, least_events(&per_cpu(mg_cores, cpu), resource));
	return least;
}

/**
 * mg_warn_of_small_budgets() - say in the log that a core's budgets are less than it accepts
 * @core: regulated from now on
 *
 * Each budget that is written is checked, but not that of a core that is offline: its events are
 * measured when it comes online, and meanwhile a new period may have made its budget smaller.
 */
void mg_warn_of_small_budgets(const struct mg_core *core)
{
	int r;

	for (r = 0; r < mg_guard.resources; r++)
		if (core->wanted[r] < least_events(core, r))
			pr_warn("CPU%u came online with a budget of %llu events per period, which is too small: give it %llu or more; the end of a throttle uses half of them\n",
				core->cpu, core->wanted[r],
				least_events(core, r));
}

static int plan_compute(struct plan *plan, enum mw_resource resource,
			struct basis basis, const char **why)
{
	/* write_setting() serialises the callers. */
	static char too_small[128];
	int cpu;

	basis.weights = 0;
	for_each_possible_cpu(cpu)
		if (plan->reservation[cpu].unit == MG_WEIGHT)
			basis.weights += plan->reservation[cpu].value;
	for_each_possible_cpu(cpu) {
		plan->events[cpu] = to_events(&plan->reservation[cpu], &basis);
		*why = "a budget would be less than one event per period";
		if (!plan->events[cpu])
			return -EINVAL;
		snprintf(too_small, sizeof(too_small),
			 "%llu events per period are too few for CPU%d: give %llu or more; the end of a throttle uses half of them",
			 plan->events[cpu], cpu,
			 least_events(&per_cpu(mg_cores, cpu), resource));
		*why = too_small;
		if (plan->events[cpu] < least_events(&per_cpu(mg_cores, cpu), resource))
			return -EINVAL;
	}
	return 0;
}

static void plan_apply(const struct plan *plan, enum mw_resource resource)
{
	u64 sum;
	int cpu;

	for_each_possible_cpu(cpu) {
		struct mg_core *core = &per_cpu(mg_cores, cpu);

		core->reservation[resource] = plan->reservation[cpu];
		core->wanted[resource] = plan->events[cpu];
	}
	sum = mg_guaranteed_mb(resource);
	if (sum > mg_guard.maxbw)
		pr_warn_ratelimited("the budgets add up to %llu MB/s, more than the %llu MB/s that memory guarantees (maxbw)\n",
				    sum, mg_guard.maxbw);
}

static void plan_free(struct plan *plan)
{
	kfree(plan->reservation);
	kfree(plan->events);
}

/**
 * mg_guaranteed_mb() - sum of the budgets of all limited online cores
 * @resource: reads or writes
 *
 * Return: MiB/s.
 */
u64 mg_guaranteed_mb(enum mw_resource resource)
{
	u64 sum = 0;
	int cpu;

	for_each_mg_cpu(cpu) {
		struct mg_core *core = &per_cpu(mg_cores, cpu);
		u64 events = core->wanted[resource];

		if (events != MW_UNLIMITED)
			sum += mg_mb(events);
	}
	return sum;
}

/* Assign the written budgets: in core order, or to one core. */
static int plan_write(struct plan *plan, const char *text, enum mg_unit unit,
		      const char **why)
{
	struct mg_reservation *values;
	struct mg_limits limits;
	unsigned int room = 0, i = 0;
	int cpu, err;

	values = kcalloc(nr_cpu_ids, sizeof(*values), GFP_KERNEL);
	if (!values)
		return -ENOMEM;
	for_each_mg_cpu(cpu)
		room++;
	err = mg_parse_limits(text, unit, &limits, values, room, why);
	if (err)
		goto out;
	if (limits.one_cpu) {
		*why = "there is no such online cpu";
		err = -EINVAL;
		if (limits.cpu >= nr_cpu_ids || !cpu_online(limits.cpu))
			goto out;
		*why = "that cpu is not regulated: it is not among cpus=";
		if (!cpumask_test_cpu(limits.cpu, &mg_guard.cpus))
			goto out;
		plan->reservation[limits.cpu] = values[0];
		err = 0;
		goto out;
	}
	for_each_mg_cpu(cpu) {
		if (i == limits.count)
			break;
		plan->reservation[cpu] = values[i++];
	}
out:
	kfree(values);
	return err;
}

static int set_budgets(enum mw_resource resource, const char *text,
		       enum mg_unit unit, const char **why)
{
	struct plan plan = {};
	int err;

	*why = mg_guard.combined ?
		       "one budget holds reads and writes together (combined=1): see limit" :
		       "the module counts no writes: load it with g_write_counter_id=";
	if (resource == MW_WRITE && !mg_counts_writes())
		return -EOPNOTSUPP;
	cpus_read_lock();
	mutex_lock(&mg_guard.lock);
	*why = "out of memory";
	err = plan_make(&plan, resource);
	if (!err)
		err = plan_write(&plan, text, unit, why);
	if (!err)
		err = plan_compute(&plan, resource, present_basis(), why);
	if (!err) {
		plan_apply(&plan, resource);
		mg_clock_set_budgets();
		mg_kick_all();
	}
	plan_free(&plan);
	mutex_unlock(&mg_guard.lock);
	cpus_read_unlock();
	return err;
}

/**
 * mg_set_limits() - set budgets as written to limit, read_limit and write_limit
 * @resource: reads or writes
 * @text: in the format of mg_parse_limits(); plain numbers are events per period
 * @why: set to the reason for an error
 *
 * Return: 0, or a negative errno with nothing changed.
 */
int mg_set_limits(enum mw_resource resource, const char *text, const char **why)
{
	return set_budgets(resource, text, MG_EVENTS, why);
}

/**
 * mg_set_shares() - set weights, as written to the classic share file
 * @text: in the format of mg_parse_limits(); plain numbers are weights
 * @why: set to the reason for an error
 *
 * Return: 0, or a negative errno with nothing changed.
 */
int mg_set_shares(const char *text, const char **why)
{
	return set_budgets(MW_READ, text, MG_WEIGHT, why);
}

/* A new period or guaranteed bandwidth: changes all budgets or none. */
static int set_basis(struct basis basis, const char **why)
{
	struct plan plan[MW_RESOURCES] = {};
	int r, err = 0;

	for (r = 0; r < MW_RESOURCES && !err; r++) {
		*why = "out of memory";
		err = plan_make(&plan[r], r);
		if (!err)
			err = plan_compute(&plan[r], r, basis, why);
	}
	if (!err) {
		mg_guard.maxbw = basis.maxbw;
		for (r = 0; r < MW_RESOURCES; r++)
			plan_apply(&plan[r], r);
		if (basis.period_us != present_basis().period_us)
			mg_clock_set_period(basis.period_us * NSEC_PER_USEC);
		else
			mg_clock_set_budgets();
		mg_kick_all();
	}
	for (r = 0; r < MW_RESOURCES; r++)
		plan_free(&plan[r]);
	return err;
}

static int set_period(u64 us, const char **why)
{
	struct basis basis = present_basis();

	*why = "period_us must be from 50 to 1000000";
	if (us < MG_PERIOD_MIN_US || us > MG_PERIOD_MAX_US)
		return -EINVAL;
	basis.period_us = us;
	return set_basis(basis, why);
}

static int set_maxbw(u64 mb, const char **why)
{
	struct basis basis = present_basis();

	*why = "maxbw must be from 1 to 10000000 (MiB/s)";
	if (!mb || mb > MG_MB_LIMIT)
		return -EINVAL;
	basis.maxbw = mb;
	return set_basis(basis, why);
}

static int set_rt(u64 cpu, u64 rt, const char **why)
{
	*why = "rt takes a possible cpu that is regulated, and 0 or 1";
	if (cpu >= nr_cpu_ids || !cpumask_test_cpu(cpu, &mg_guard.cpus) || rt > 1)
		return -EINVAL;
	mw_set_rt(&per_cpu(mg_cores, cpu).policy, rt);
	mg_kick_all();
	return 0;
}

/**
 * mg_reset_stats() - clear every core's statistics when its next period begins
 *
 * A core without a timer clears them now. The caller prevents CPU hotplug.
 */
void mg_reset_stats(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		WRITE_ONCE(per_cpu(mg_cores, cpu).reset, true);
	mg_freshen();
}

/**
 * mg_set_control() - apply one setting, as written to the control file
 * @text: in the format of mg_parse_control()
 * @why: set to the reason for an error
 *
 * Return: 0, or a negative errno with nothing changed.
 */
int mg_set_control(const char *text, const char **why)
{
	struct mg_command command;
	int err = mg_parse_control(text, &command, why);

	if (err)
		return err;
	cpus_read_lock();
	mutex_lock(&mg_guard.lock);
	switch (command.word) {
	case MG_MAXBW:
		err = set_maxbw(command.value[0], why);
		break;
	case MG_RECLAIM:
		*why = "reclaim must be 0 or 1";
		err = mw_set_reclaim(&mg_guard.policy, command.value[0]);
		mg_kick_all();
		break;
	case MG_EXCLUSIVE:
		*why = "exclusive must be 0 (none), 2 (spare) or 5 (proportional)";
		err = mw_set_best_effort(&mg_guard.policy, command.value[0]);
		mg_kick_all();
		break;
	case MG_RT:
		err = set_rt(command.value[0], command.value[1], why);
		break;
	case MG_PERIOD_US:
		err = set_period(command.value[0], why);
		break;
	case MG_QMIN:
		*why = "qmin is out of range";
		err = mw_set_qmin(&mg_guard.policy, command.value[0]);
		break;
	case MG_RESET:
		mg_reset_stats();
		break;
	}
	mutex_unlock(&mg_guard.lock);
	cpus_read_unlock();
	return err;
}
