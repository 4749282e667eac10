// SPDX-License-Identifier: GPL-2.0-only
/*
 * The throttle thread: while the core's hold flag is set, this thread occupies the core and no
 * other task runs there. README.md compares this with alternatives.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/sched/deadline.h>
#include <uapi/linux/sched/types.h>

#include "compat.h"
#include "memguard.h"
#include "trace.h"

static bool fifo;
module_param(fifo, bool, 0444);
MODULE_PARM_DESC(fifo, "hold cores with SCHED_FIFO only, as on a kernel without schedutil: the budgets then leak (for tests)");

/**
 * mg_throttle_arrived() - the thread runs on the core, possibly too late
 * @core: of this CPU, interrupts off
 *
 * Code that cannot be preempted continues until then, sometimes for several periods.
 */
void mg_throttle_arrived(struct mg_core *core)
{
	u64 latency = ktime_get_ns() - core->waits_since;

	core->waiting = false;
	if (!core->trial && latency > core->stats.throttle_latency_max)
		core->stats.throttle_latency_max = latency;
}

/* Record the overshoot, now that no other task runs here. */
static void book_hold(struct mg_core *core)
{
	u64 latency = ktime_get_ns() - core->waits_since;
	int r;

	mg_throttle_arrived(core);
	core->holding = true;
	for (r = 0; core->trial && r < MW_RESOURCES; r++)
		core->counter[r].held_at = core->counter[r].begin +
					   mg_counter_used(&core->counter[r]);
	if (!core->policy.throttled)
		return;
	for (r = 0; r < MW_RESOURCES; r++) {
		u64 used = mg_counter_used(&core->counter[r]);
		u64 assigned = core->policy.account[r].assigned;

		core->counter[r].held = used;
		if (core->counter[r].stopped)
			trace_throttle(mg_epoch(core), used, assigned,
				       used > assigned ? used - assigned : 0,
				       latency);
	}
}

static void book_return(struct mg_core *core)
{
	u64 latency = ktime_get_ns() - core->released_at;

	core->holding = false;
	if (core->trial)
		return;
	if (latency > core->stats.release_latency_max)
		core->stats.release_latency_max = latency;
	trace_unthrottle(mg_epoch(core),
			 core->released_at - core->throttled_since, latency);
}

static void hold(struct mg_core *core)
{
	local_irq_disable();
	if (core->hold) {
		book_hold(core);
		while (READ_ONCE(core->hold)) {
			if (!mg_guard.poll && !need_resched()) {
				mg_halt();
			} else {
				local_irq_enable();
				cpu_relax();
			}
			/* For the migration thread, and as a quiescent state for RCU. */
			if (need_resched())
				schedule();
			else
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
		if (!READ_ONCE(core->hold)) {
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
 * The scheduler selects by class, and among deadline entities by deadline. With the flag that
 * schedutil's threads have, an entity's runtime is not enforced, its parameters are not checked,
 * and it reserves no bandwidth. A relative deadline of -2^62 ns puts the absolute deadline 146
 * years into the past. That is before the deadline of any deadline task, and before the fair
 * server's: that server waits as long as the throttle lasts, so its deadline becomes older than any
 * future one. Only the stopper ranks above. The period is as long as the deadline: an entity with a
 * shorter period would be throttled until its next period.
 */
#define EVER_AGO (0ULL - (1ULL << 62))
#define MG_FLAG_SUGOV 0x10000000 /* SCHED_FLAG_SUGOV of kernel/sched/sched.h */

static void choose_class(struct task_struct *thread)
{
	const struct sched_attr attr = {
		.size = sizeof(attr),
		.sched_policy = SCHED_DEADLINE,
		.sched_flags = MG_FLAG_SUGOV,
		/* Not enforced; but since Linux 7.3 hrtick reads the remaining runtime. */
		.sched_runtime = NSEC_PER_SEC,
		.sched_deadline = EVER_AGO,
		.sched_period = EVER_AGO,
	};
	int err = -EOPNOTSUPP;

	if (IS_ENABLED(CONFIG_CPU_FREQ_GOV_SCHEDUTIL) && !fifo)
		err = sched_setattr_nocheck(thread, &attr);
	/* The flag is internal to the scheduler: check that it took effect. */
	if (!err && dl_task(thread) && thread->dl.flags & MG_FLAG_SUGOV &&
	    thread->dl.dl_deadline == EVER_AGO)
		return;
	pr_warn_once("this kernel has no schedutil, or its scheduler refuses the flag of schedutil's threads (error %d), so no scheduling class can hold a core: about 50 ms in each second run unregulated (sched_rt_runtime_us, fair_server), and tasks above SCHED_FIFO 50 always do\n",
		     err);
	sched_set_fifo(thread);
}

/**
 * mg_throttle_create() - create a core's thread; it sleeps until mg_throttle()
 * @core: online or about to be
 *
 * Return: 0, or a negative errno with a message in the log.
 */
int mg_throttle_create(struct mg_core *core)
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
	choose_class(core->thread);
	wake_up_process(core->thread);
	return 0;
}

/**
 * mg_throttle_destroy() - stop a core's thread
 * @core: not held; may have no thread
 */
void mg_throttle_destroy(struct mg_core *core)
{
	struct task_struct *thread = core->thread;

	/* Clear it first: the sched_switch probe compares with it. */
	WRITE_ONCE(core->thread, NULL);
	if (thread)
		kthread_stop(thread);
}

/**
 * mg_throttle() - have the thread take the core
 * @core: of this CPU, interrupts off
 *
 * The thread may still be on its way since an earlier period.
 */
void mg_throttle(struct mg_core *core)
{
	if (!core->waiting) {
		core->waiting = true;
		core->waits_since = core->overflow_ns;
	}
	core->leaving_hold = false;
	WRITE_ONCE(core->hold, true);
	wake_up_process(core->thread);
}

/**
 * mg_unthrottle() - have the thread give the core back
 * @core: of this CPU, interrupts off
 * @now: ns, monotonic
 *
 * The core's tasks run once left() in core.c has seen the thread leave. If the thread has not run
 * yet, they never stopped.
 */
void mg_unthrottle(struct mg_core *core, u64 now)
{
	core->released_at = now;
	core->leaving_hold = true;
	WRITE_ONCE(core->hold, false);
}
