// SPDX-License-Identifier: GPL-2.0-only
/*
 * One regulated core: its period timer, its overflow, its throttle thread,
 * and the kick by which another core tells it that something has changed.
 * Everything here runs on the core's own CPU; what is decided is decided in
 * policy/. Which period it is, all cores tell from one clock.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpu.h>
#include <linux/kthread.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/timekeeping.h>
#include <linux/tracepoint.h>
#include <uapi/linux/sched/types.h>

#include "compat.h"
#include "memguard.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

DEFINE_PER_CPU(struct mg_core, mg_cores);

static bool core_is_idle(void)
{
	return is_idle_task(current);
}

/* ---- the clock: which period is it? ---- */

/**
 * mg_clock_read() - the clock that all cores go by
 *
 * Return: a consistent copy.
 */
struct mg_clock mg_clock_read(void)
{
	struct mg_clock clock;
	unsigned int seq;

	do {
		seq = read_seqcount_begin(&mg_guard.clock_seq);
		clock = mg_guard.clock;
	} while (read_seqcount_retry(&mg_guard.clock_seq, seq));
	return clock;
}

static void clock_write(const struct mg_clock *clock)
{
	write_seqcount_begin(&mg_guard.clock_seq);
	mg_guard.clock = *clock;
	write_seqcount_end(&mg_guard.clock_seq);
}

static u64 periods_since_phase(const struct mg_clock *clock, u64 now)
{
	/* Another core may have set the phase after we looked at the time. */
	return now > clock->phase ? div64_u64(now - clock->phase, clock->period_ns) : 0;
}

static u64 clock_number(const struct mg_clock *clock, u64 now)
{
	return clock->number + periods_since_phase(clock, now);
}

static u64 next_boundary(u64 now)
{
	const struct mg_clock clock = mg_clock_read();

	return clock.phase +
	       (periods_since_phase(&clock, now) + 1) * clock.period_ns;
}

/* Best effort has opened period @number: it is the one that begins now. */
static void clock_restart(u64 number, u64 now)
{
	struct mg_clock clock;

	raw_spin_lock(&mg_guard.clock_lock);
	clock = mg_guard.clock;
	/* A later winner may have been here first. */
	if (now > clock.phase) {
		clock.number = number;
		clock.phase = now;
		clock_write(&clock);
	}
	raw_spin_unlock(&mg_guard.clock_lock);
}

/**
 * mg_clock_set_period() - a new length, from a period that begins now
 * @period_ns: the length
 *
 * The caller kicks all cores.
 */
void mg_clock_set_period(u64 period_ns)
{
	struct mg_clock clock;
	unsigned long flags;
	u64 now;

	raw_spin_lock_irqsave(&mg_guard.clock_lock, flags);
	now = ktime_get_ns();
	clock = mg_guard.clock;
	clock.number = clock_number(&clock, now) + 1;
	clock.phase = now;
	clock.period_ns = period_ns;
	clock_write(&clock);
	raw_spin_unlock_irqrestore(&mg_guard.clock_lock, flags);
}

/* ---- what an action asks of the host ---- */

static void kick_others(struct mg_core *core)
{
	int cpu;

	for_each_online_cpu(cpu) {
		struct mg_core *other = &per_cpu(mg_cores, cpu);

		/* Busy means that a kick is under way: it will see it all. */
		if (other != core && READ_ONCE(other->regulated))
			smp_call_function_single_async(cpu, &other->kick);
	}
}

static void carry_out(struct mg_core *core, enum mw_action action, u64 now)
{
	switch (action) {
	case MW_CONTINUE:
	case MW_RUN:
		break;
	case MW_THROTTLE:
		core->stats.throttled_periods++;
		core->throttled_since = now;
		wake_up_process(core->thread);
		break;
	case MW_RELEASE_ALL:
		trace_best_effort(core->policy.epoch, MW_SPARE);
		kick_others(core);
		break;
	case MW_NEW_PERIOD:
		trace_best_effort(core->policy.epoch, MW_PROPORTIONAL);
		clock_restart(mw_census_read(&mg_guard.policy).epoch, now);
		kick_others(core);
		break;
	}
}

static void arm_counters(struct mg_core *core)
{
	int r;

	for (r = 0; r < MW_RESOURCES; r++)
		mg_counter_arm(&core->counter[r],
			       core->policy.throttled ?
				       MW_UNLIMITED :
				       mw_until_overflow(&core->policy, r));
}

/* The throttle thread sees policy.throttled fall, and gives the core back. */
static void book_release(struct mg_core *core, u64 now)
{
	core->stats.throttled_ns += now - core->throttled_since;
	core->released_at = now;
}

/* Until the period ends, whatever the counter says. */
static void book_best_effort(struct mg_core *core, u64 now)
{
	core->stats.best_effort_periods++;
	core->best_effort_since = now;
}

/* ---- periods ---- */

static void clear_stats(struct mg_core *core)
{
	int r;

	memset(&core->stats, 0, sizeof(core->stats));
	for (r = 0; r < MW_RESOURCES; r++) {
		struct mw_account *account = &core->policy.account[r];

		account->total_used = 0;
		account->total_assigned = 0;
		account->total_donated = 0;
		account->total_reclaimed = 0;
		account->reclaim_errors = 0;
		core->counter[r].overshoot_max = 0;
		memset(core->counter[r].overshoot, 0,
		       sizeof(core->counter[r].overshoot));
	}
	WRITE_ONCE(core->reset, false);
}

static void average(struct mg_counter *counter, u64 used)
{
	static const int shift[MG_AVERAGES] = { 1, 4, 8 };
	int i;

	for (i = 0; i < MG_AVERAGES; i++)
		counter->average[i] += (used << 8 >> shift[i]) -
				       (counter->average[i] >> shift[i]);
}

static void begin_period(struct mg_core *core, u64 now, u64 late)
{
	const struct mg_clock clock = mg_clock_read();
	const struct mw_core *policy = &core->policy;
	u64 used[MW_RESOURCES], assigned[MW_RESOURCES];
	bool throttled = policy->throttled, best_effort = policy->best_effort;
	u64 epoch = policy->epoch, throttled_ns = 0;
	enum mw_action action;
	int r;

	for (r = 0; r < MW_RESOURCES; r++) {
		used[r] = mg_counter_used(&core->counter[r]);
		assigned[r] = policy->account[r].assigned;
	}
	action = mw_period_begin(&mg_guard.policy, &core->policy,
				 clock_number(&clock, now), core_is_idle(), used);
	if (action == MW_CONTINUE)
		return;

	if (throttled) {
		throttled_ns = now - core->throttled_since;
		book_release(core, now);
	}
	if (best_effort)
		core->stats.best_effort_ns += now - core->best_effort_since;
	trace_period(epoch, late, used, assigned, throttled_ns);
	if (unlikely(READ_ONCE(core->reset)))
		clear_stats(core);
	core->stats.periods++;
	core->stats.late_sum += late;
	if (late > core->stats.late_max)
		core->stats.late_max = late;
	for (r = 0; r < MW_RESOURCES; r++) {
		core->counter[r].begin += used[r];
		if (core->counter[r].event)
			average(&core->counter[r], used[r]);
	}
	arm_counters(core);
	carry_out(core, action, now);
}

static enum hrtimer_restart period_elapsed(struct hrtimer *timer)
{
	struct mg_core *core = container_of(timer, struct mg_core, timer);
	u64 now = ktime_to_ns(hrtimer_cb_get_time(timer));
	u64 late = now - ktime_to_ns(hrtimer_get_expires(timer));

	core->stats.missed_periods += div64_u64(late, READ_ONCE(mg_guard.clock.period_ns));
	begin_period(core, now, late);
	hrtimer_set_expires(timer, ns_to_ktime(next_boundary(now)));
	return HRTIMER_RESTART;
}

/* Another core, or a setting, says: look again. Interrupts are off. */
static void core_kicked(void *info)
{
	struct mg_core *core = info;
	u64 now = ktime_get_ns();

	if (!core->regulated)
		return;
	begin_period(core, now, 0);
	hrtimer_start(&core->timer, ns_to_ktime(next_boundary(now)),
		      HRTIMER_MODE_ABS_PINNED_HARD);
	if (mw_release(&mg_guard.policy, &core->policy) != MW_RUN)
		return;
	book_release(core, now);
	if (core->policy.best_effort)
		book_best_effort(core, now);
	arm_counters(core);
}

/**
 * mg_kick_all() - make every core look at the settings now
 *
 * Waits until they have. The caller keeps CPUs from coming and going.
 */
void mg_kick_all(void)
{
	int cpu;

	for_each_online_cpu(cpu)
		smp_call_function_single(cpu, core_kicked,
					 &per_cpu(mg_cores, cpu), true);
}

/* ---- overflow and throttle ---- */

/**
 * mg_core_overflow() - the counter's interrupt, now outside of NMI context
 * @counter: of this CPU; interrupts are off
 */
void mg_core_overflow(struct mg_counter *counter)
{
	struct mg_core *core = counter->core;
	enum mw_resource r = counter->resource;
	struct mw_account *account = &core->policy.account[r];
	u64 reclaimed = account->total_reclaimed;
	bool best_effort = core->policy.best_effort;
	enum mw_action action;
	u64 used, now;

	if (!core->regulated || core->policy.throttled)
		return;
	used = mg_counter_used(counter);
	core->stats.overflows++;
	action = mw_overflow(&mg_guard.policy, &core->policy, r, used);
	if (account->total_reclaimed != reclaimed)
		trace_reclaim(core->policy.epoch, r,
			      account->total_reclaimed - reclaimed,
			      mw_pool_read(&mg_guard.policy, r));
	trace_overflow(core->policy.epoch, r, used, account->assigned, action);
	if (action == MW_RUN)
		mg_counter_arm(counter, mw_until_overflow(&core->policy, r));
	else
		arm_counters(core);
	now = ktime_get_ns();
	if (core->policy.best_effort && !best_effort)
		book_best_effort(core, now);
	carry_out(core, action, now);
	if (action == MW_NEW_PERIOD)
		core_kicked(core);
}

/* How far past what was handed out, now that nothing else runs here. */
static void book_hold(struct mg_core *core)
{
	u64 latency = ktime_get_ns() - core->overflow_ns;
	int r;

	if (latency > core->stats.throttle_latency_max)
		core->stats.throttle_latency_max = latency;
	for (r = 0; r < MW_RESOURCES; r++) {
		u64 used = mg_counter_used(&core->counter[r]);
		u64 assigned = core->policy.account[r].assigned;
		u64 over = used - assigned;

		if (!core->counter[r].event || used < assigned)
			continue;
		mg_counter_overshot(&core->counter[r], over);
		trace_throttle(core->policy.epoch, used, assigned, over, latency);
	}
}

static void book_return(struct mg_core *core)
{
	u64 latency = ktime_get_ns() - core->released_at;

	if (latency > core->stats.release_latency_max)
		core->stats.release_latency_max = latency;
	trace_unthrottle(core->policy.epoch,
			 core->released_at - core->throttled_since, latency);
}

static void hold(struct mg_core *core)
{
	local_irq_disable();
	if (core->policy.throttled) {
		book_hold(core);
		while (READ_ONCE(core->policy.throttled)) {
			if (!mg_guard.poll && !need_resched()) {
				mg_halt();
			} else {
				local_irq_enable();
				cpu_relax();
			}
			/* For the migration thread, and as a quiescent state. */
			cond_resched();
			local_irq_disable();
		}
		book_return(core);
	}
	local_irq_enable();
}

static int throttle_thread(void *arg)
{
	struct mg_core *core = arg;

	for (;;) {
		set_current_state(TASK_IDLE);
		if (kthread_should_stop())
			break;
		if (!READ_ONCE(core->policy.throttled)) {
			schedule();
			continue;
		}
		__set_current_state(TASK_RUNNING);
		hold(core);
	}
	__set_current_state(TASK_RUNNING);
	return 0;
}

/*
 * The scheduler lets neither SCHED_FIFO nor ordinary deadline tasks have a
 * core for good: real-time throttling (or, from 6.12 on, the fair server) runs
 * what we hold back for 50 ms in every second. The class that schedutil's own
 * kernel threads use is exempt from both, and it yields to the stopper as any
 * other does. Its runtime is never enforced, but kernels before 6.15 add it to
 * the deadline bandwidth whenever a CPU comes or goes, so it is the smallest
 * there is. Where the class isn't built in, SCHED_FIFO it is.
 */
static int choose_class(struct task_struct *thread)
{
	const struct sched_attr attr = {
		.size = sizeof(attr),
		.sched_policy = SCHED_DEADLINE,
		.sched_flags = 0x10000000, /* SCHED_FLAG_SUGOV */
		.sched_runtime = 1024, /* ns */
		.sched_deadline = NSEC_PER_MSEC,
		.sched_period = NSEC_PER_MSEC,
	};

	if (!IS_ENABLED(CONFIG_CPU_FREQ_GOV_SCHEDUTIL)) {
		pr_info_once("no exempt scheduling class in this kernel: real-time throttling will interrupt throttles (sched_rt_runtime_us)\n");
		sched_set_fifo(thread);
		return 0;
	}
	return sched_setattr_nocheck(thread, &attr);
}

/* ---- who is idle ---- */

static struct tracepoint *sched_switch;

static void find_sched_switch(struct tracepoint *tp, void *unused)
{
	if (!strcmp(tp->name, "sched_switch"))
		sched_switch = tp;
}

static void switched(void *unused, bool preempt, struct task_struct *prev,
		     struct task_struct *next, unsigned int prev_state)
{
	if (is_idle_task(prev))
		mw_core_active(&mg_guard.policy,
			       &this_cpu_ptr(&mg_cores)->policy);
}

/**
 * mg_watch_idle() - hear of every core that leaves idle
 *
 * Return: 0 or a negative errno.
 */
int mg_watch_idle(void)
{
	for_each_kernel_tracepoint(find_sched_switch, NULL);
	if (!sched_switch) {
		pr_err("this kernel has no sched_switch tracepoint: CONFIG_TRACEPOINTS is needed\n");
		return -EOPNOTSUPP;
	}
	return tracepoint_probe_register(sched_switch, switched, NULL);
}

/** mg_unwatch_idle() - the end of mg_watch_idle() */
void mg_unwatch_idle(void)
{
	tracepoint_probe_unregister(sched_switch, switched, NULL);
	tracepoint_synchronize_unregister();
}

/* ---- coming and going ---- */

static int open_counters(struct mg_core *core)
{
	int r, err;

	for (r = 0; r < MW_RESOURCES; r++) {
		err = mg_counter_open(&core->counter[r], core->cpu);
		if (!err)
			continue;
		pr_err("CPU%u: event %s (%s, %#llx) refused with error %d; try another g_hw_type=, or page-faults where there is no PMU\n",
		       core->cpu, mg_guard.event.name,
		       r == MW_READ ? "read" : "write",
		       r == MW_READ ? mg_guard.event.read : mg_guard.event.write,
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

static int create_thread(struct mg_core *core)
{
	int err;

	core->thread = kthread_create_on_cpu(throttle_thread, core, core->cpu,
					     "memguard/%u");
	if (IS_ERR(core->thread)) {
		err = PTR_ERR(core->thread);
		core->thread = NULL;
		pr_err("CPU%u: no throttle thread: error %d\n", core->cpu, err);
		return err;
	}
	err = choose_class(core->thread);
	if (err) {
		pr_err("CPU%u: throttle thread's scheduling class refused: error %d\n",
		       core->cpu, err);
		return err;
	}
	wake_up_process(core->thread);
	return 0;
}

static void stop_thread(struct mg_core *core)
{
	if (core->thread)
		kthread_stop(core->thread);
	core->thread = NULL;
}

/* On the core's CPU, interrupts off; clears @info when it has begun. */
static void begin_regulation(void *info)
{
	struct mg_core *core = this_cpu_ptr(&mg_cores);
	int *err = info;
	int r;

	/* The callback that stops this core has been and gone. */
	if (core->leaving)
		return;
	*err = 0;
	mw_core_online(&mg_guard.policy, &core->policy);
	for (r = 0; r < MW_RESOURCES; r++) {
		core->counter[r].begin = 0;
		core->counter[r].begin = mg_counter_used(&core->counter[r]);
	}
	arm_counters(core);
	core->regulated = true;
	hrtimer_start(&core->timer, ns_to_ktime(next_boundary(ktime_get_ns())),
		      HRTIMER_MODE_ABS_PINNED_HARD);
}

/**
 * mg_core_start() - regulate a CPU from now on
 * @cpu: idle; if it is offline, or leaves meanwhile, nothing has happened
 *
 * Not from a hotplug callback: perf takes the hotplug lock.
 *
 * Return: 0, or a negative errno with nothing left behind.
 */
int mg_core_start(unsigned int cpu)
{
	struct mg_core *core = &per_cpu(mg_cores, cpu);
	int err;

	if (!cpu_online(cpu) || READ_ONCE(core->leaving))
		return 0;
	err = open_counters(core);
	if (!err)
		err = create_thread(core);
	if (!err) {
		err = -ENODEV;
		smp_call_function_single(cpu, begin_regulation, &err, true);
	}
	if (!err)
		return 0;
	stop_thread(core);
	close_counters(core);
	return cpu_online(cpu) && !core->leaving ? err : 0;
}

/**
 * mg_core_stop() - let this CPU go, throttled or not
 * @cpu: the CPU that this runs on, regulated or not
 *
 * What perf holds is left for mg_core_close(): see mg_core_start().
 */
void mg_core_stop(unsigned int cpu)
{
	struct mg_core *core = &per_cpu(mg_cores, cpu);
	enum mw_action action;
	bool throttled;

	WRITE_ONCE(core->leaving, true);
	if (!core->regulated)
		return;
	local_irq_disable();
	WRITE_ONCE(core->stopping, true);
	/* mg_core_is_idle(): who sees that it isn't regulated sees why. */
	smp_store_release(&core->regulated, false);
	throttled = core->policy.throttled;
	action = mw_core_offline(&mg_guard.policy, &core->policy);
	if (throttled)
		book_release(core, ktime_get_ns());
	carry_out(core, action, ktime_get_ns());
	local_irq_enable();

	hrtimer_cancel(&core->timer);
	stop_thread(core);
	/* mg_core_is_idle(): whoever starts it next sees that no thread is left. */
	smp_store_release(&core->stopping, false);
}

/**
 * mg_core_is_idle() - neither regulated nor being stopped
 * @cpu: any possible CPU
 *
 * Return: whether the caller, if it is the only one that starts cores, may
 * close or start this one.
 */
bool mg_core_is_idle(unsigned int cpu)
{
	struct mg_core *core = &per_cpu(mg_cores, cpu);

	/* Pairs with the store of mg_core_stop(), as the next does. */
	if (smp_load_acquire(&core->regulated))
		return false;
	/* Of the two, this one is cleared last. */
	return !smp_load_acquire(&core->stopping);
}

/**
 * mg_core_close() - give back what a stopped core holds
 * @cpu: stopped; need not be online
 */
void mg_core_close(unsigned int cpu)
{
	close_counters(&per_cpu(mg_cores, cpu));
}

/**
 * mg_cores_init() - every possible core, offline and without limits
 */
void mg_cores_init(void)
{
	int cpu, r;

	for_each_possible_cpu(cpu) {
		struct mg_core *core = &per_cpu(mg_cores, cpu);

		core->cpu = cpu;
		for (r = 0; r < MW_RESOURCES; r++) {
			core->counter[r].core = core;
			core->counter[r].resource = r;
		}
		mw_core_init(&core->policy);
		INIT_CSD(&core->kick, core_kicked, core);
		hrtimer_setup(&core->timer, period_elapsed, CLOCK_MONOTONIC,
			      HRTIMER_MODE_ABS_PINNED_HARD);
	}
}
