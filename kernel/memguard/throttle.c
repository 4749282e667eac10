// SPDX-License-Identifier: GPL-2.0-only
/*
 * The throttle thread: while the core's hold flag is set, this thread has the
 * core and nothing else runs there. README.md compares it with other ways.
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

/**
 * mg_throttle_arrived() - the thread has come to the core, be it too late
 * @core: of this CPU, interrupts off
 *
 * What can't be preempted runs on before that, for several periods at times.
 */
void mg_throttle_arrived(struct mg_core *core)
{
	u64 latency = ktime_get_ns() - core->waits_since;

	core->waiting = false;
	if (!core->trial && latency > core->stats.throttle_latency_max)
		core->stats.throttle_latency_max = latency;
}

/* How far past what was handed out, now that nothing else runs here. */
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
			/* For the migration thread, and as a quiescent state. */
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
 * The scheduler picks by class, and among deadline entities by deadline. With
 * the flag of schedutil's own threads an entity's runtime is never enforced,
 * its parameters are not checked, and it takes no bandwidth. A relative
 * deadline of -2^62 ns puts the absolute one 146 years into the past: before
 * that of any deadline task, and before that of the fair server, which waits
 * behind the throttle for as long as the throttle lasts and so is older than
 * any deadline that lies ahead. Only the stopper is above. The period is as
 * long as the deadline: an entity with less is throttled until its next period.
 */
#define EVER_AGO (0ULL - (1ULL << 62))
#define MG_FLAG_SUGOV 0x10000000 /* SCHED_FLAG_SUGOV of kernel/sched/sched.h */

static void choose_class(struct task_struct *thread)
{
	const struct sched_attr attr = {
		.size = sizeof(attr),
		.sched_policy = SCHED_DEADLINE,
		.sched_flags = MG_FLAG_SUGOV,
		/* Not enforced; but hrtick, from 7.3 on, asks how much is left. */
		.sched_runtime = NSEC_PER_SEC,
		.sched_deadline = EVER_AGO,
		.sched_period = EVER_AGO,
	};
	int err = -EOPNOTSUPP;

	if (IS_ENABLED(CONFIG_CPU_FREQ_GOV_SCHEDUTIL))
		err = sched_setattr_nocheck(thread, &attr);
	/* What the flag means is the scheduler's own affair: has it been understood? */
	if (!err && dl_task(thread) && thread->dl.flags & MG_FLAG_SUGOV &&
	    thread->dl.dl_deadline == EVER_AGO)
		return;
	pr_warn_once("this kernel is without schedutil, or its scheduler refuses its threads' flag (error %d), and so it has no scheduling class that holds a core: each second some 50 ms run unregulated (sched_rt_runtime_us, fair_server), and tasks above SCHED_FIFO 50 always do\n",
		     err);
	sched_set_fifo(thread);
}

/**
 * mg_throttle_create() - make a core's thread; it sleeps until mg_throttle()
 * @core: online or about to be
 *
 * Return: 0, or a negative errno with a line in the log.
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
 * mg_throttle_destroy() - end a core's thread
 * @core: not held; may have no thread
 */
void mg_throttle_destroy(struct mg_core *core)
{
	struct task_struct *thread = core->thread;

	/* First: sched_switch compares with it. */
	WRITE_ONCE(core->thread, NULL);
	if (thread)
		kthread_stop(thread);
}

/**
 * mg_throttle() - have the thread take the core
 * @core: of this CPU, interrupts off
 *
 * It may still be on its way since an earlier period.
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
 * The core's tasks run once left() in core.c has seen the thread leave, or have
 * never ceased to if it has not come yet.
 */
void mg_unthrottle(struct mg_core *core, u64 now)
{
	core->released_at = now;
	core->leaving_hold = true;
	WRITE_ONCE(core->hold, false);
}
