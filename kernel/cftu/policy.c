// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which channel a transfer takes, and when.
 *
 * off		none: the CPU copies.
 * exclusive	each CPU has a channel, so that the CPUs' load is the channels'.
 * shared	the channel with the fewest tasks on it.
 * priority	exclusive, and time is cut into windows: in each one's first part only
 *		the high channels copy, in the rest all do.
 *
 * A thread pauses and resumes low channels. On an engine that can't pause, low transfers
 * wait instead: one begins only if, by the time that the channel's last ones took, it will
 * end within the low part, and it is shortened to fit. A transfer that takes longer than
 * expected runs into the next window's high part.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpu.h>
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/smp.h>

#include "kernel-copies.h"
#include "policy.h"

static char *policy;
module_param(policy, charp, 0444);
MODULE_PARM_DESC(policy, "at load: off, exclusive, shared or priority (default: the kernel's, usercopy.dma, or shared)");

static bool fold;
module_param(fold, bool, 0444);
MODULE_PARM_DESC(fold, "at load: let CPUs share a channel where there are more CPUs (default 0)");

/* An hour: with the windows' parts added it still fits a u64 of ns. */
#define TIMEOUT_MS_MAX 3600000U

static uint timeout_ms = 10000;
module_param(timeout_ms, uint, 0644);
MODULE_PARM_DESC(timeout_ms, "when a transfer counts as hanging (default 10000; 0 is 1, an hour the most)");

#define NO_CHANNEL UINT_MAX

#define QUANTUM_HIGH_NS (30 * NSEC_PER_USEC)
#define QUANTUM_LOW_NS (60 * NSEC_PER_USEC)

/* Held for reading over a transfer, so that a writer waits for all transfers under way. */
static DECLARE_RWSEM(lock);

static struct {
	enum cftu_policy_kind kind;
	bool folded;
	u64 high;
	u64 quantum_high_ns;
	u64 quantum_low_ns;
	/* Windows are counted from here, in ns of CLOCK_MONOTONIC. */
	u64 origin_ns;
	u64 times;
	/* NO_CHANNEL: the CPU copies. */
	unsigned int channel_of[NR_CPUS];
	/* Of an engine that can pause, under the priority policy. */
	struct task_struct *windows;
} state;

static const char *const names[] = {
	[CFTU_POLICY_OFF] = "off",
	[CFTU_POLICY_EXCLUSIVE] = "exclusive",
	[CFTU_POLICY_SHARED] = "shared",
	[CFTU_POLICY_PRIORITY] = "priority",
};

/*
 * Assigns channels to online CPUs first, then to CPUs that may come online. When channels
 * run out, CPUs share them if folded, else get none.
 */
static void assign_channels(void)
{
	unsigned int cpu, next = 0;
	bool online;

	for (online = true;; online = false) {
		for_each_possible_cpu(cpu) {
			if (cpu_online(cpu) != online)
				continue;
			state.channel_of[cpu] = state.folded || next < cftu_engine.count ?
						next % cftu_engine.count : NO_CHANNEL;
			next++;
		}
		if (!online)
			break;
	}
}

static bool is_high(unsigned int channel)
{
	return state.kind == CFTU_POLICY_PRIORITY && (state.high & BIT_ULL(channel));
}

static void pause_low(bool pause)
{
	unsigned int i;

	for (i = 0; i < cftu_engine.count; i++)
		if (!is_high(i))
			cftu_channel_pause(&cftu_engine.channels[i], pause);
}

/* Returns the first boundary between two parts after @ns. */
static u64 border_after(u64 ns)
{
	u64 part, window = state.quantum_high_ns + state.quantum_low_ns;

	div64_u64_rem(ns - state.origin_ns, window, &part);
	return ns - part + (part < state.quantum_high_ns ? state.quantum_high_ns : window);
}

/*
 * Pauses the low channels at each window's start and resumes them where its high part ends.
 * A real-time thread does it: softirqs wait for ksoftirqd under load, and a provider's pause
 * may sleep.
 */
static int windows(void *unused)
{
	sched_set_fifo(current);
	while (!kthread_should_stop()) {
		u64 began = ktime_get_ns(), ended, part;
		ktime_t next;

		div64_u64_rem(began - state.origin_ns,
			      state.quantum_high_ns + state.quantum_low_ns, &part);
		pause_low(part < state.quantum_high_ns);
		ended = ktime_get_ns();
		/*
		 * Sleep until the next boundary, but at least as long as this round took:
		 * windows that are too short for this machine then cost half a CPU, not all
		 * of it.
		 */
		next = ns_to_ktime(max(border_after(began), ended + (ended - began)));
		set_current_state(TASK_INTERRUPTIBLE);
		if (!kthread_should_stop())
			schedule_hrtimeout_range(&next, 0, HRTIMER_MODE_ABS);
		__set_current_state(TASK_RUNNING);
	}
	pause_low(false);
	return 0;
}

/* Call before a change of the state that the thread reads. */
static void windows_stop(void)
{
	if (state.windows)
		kthread_stop(state.windows);
	state.windows = NULL;
}

static int windows_start(void)
{
	struct task_struct *thread;

	if (state.kind != CFTU_POLICY_PRIORITY || !cftu_engine.can_pause)
		return 0;
	thread = kthread_run(windows, NULL, "cftu/windows");
	if (IS_ERR(thread))
		return PTR_ERR(thread);
	state.windows = thread;
	return 0;
}

static bool is_quantum(u64 ns)
{
	return ns >= CFTU_QUANTUM_MIN_NS && ns <= CFTU_QUANTUM_MAX_NS;
}

static bool needs_a_channel_each(const struct cftu_policy *wanted)
{
	return wanted->policy == CFTU_POLICY_EXCLUSIVE || wanted->policy == CFTU_POLICY_PRIORITY;
}

int cftu_start(const struct cftu_policy *wanted)
{
	u64 all = GENMASK_ULL(cftu_engine.count - 1, 0);
	u64 high_ns = wanted->quantum_high_ns ?: QUANTUM_HIGH_NS;
	u64 low_ns = wanted->quantum_low_ns ?: QUANTUM_LOW_NS;
	int err = 0;

	if (wanted->policy > CFTU_POLICY_PRIORITY || (wanted->flags & ~CFTU_FOLD))
		return -EINVAL;
	if (wanted->policy == CFTU_POLICY_PRIORITY) {
		if (!is_quantum(high_ns) || !is_quantum(low_ns) || (wanted->high & ~all))
			return -EINVAL;
	} else if (wanted->quantum_high_ns || wanted->quantum_low_ns || wanted->high) {
		return -EINVAL;
	}
	cpus_read_lock();
	down_write(&lock);
	if (needs_a_channel_each(wanted) && num_online_cpus() > cftu_engine.count) {
		if (!(wanted->flags & CFTU_FOLD)) {
			err = -EINVAL;
			goto out;
		}
		pr_warn_ratelimited("%s: %u CPUs share %u channels\n", names[wanted->policy],
				    num_online_cpus(), cftu_engine.count);
	}
	windows_stop();
	state.kind = wanted->policy;
	state.folded = wanted->flags & CFTU_FOLD;
	assign_channels();
	state.high = wanted->high ?: 1;
	state.quantum_high_ns = high_ns;
	state.quantum_low_ns = low_ns;
	state.origin_ns = ktime_get_ns();
	state.times++;
	err = windows_start();
	/* Priority without windows would be exclusive under another name. */
	if (err)
		state.kind = CFTU_POLICY_OFF;
out:
	up_write(&lock);
	cpus_read_unlock();
	return err;
}
EXPORT_SYMBOL_GPL(cftu_start);

void cftu_stop(void)
{
	const struct cftu_policy off = { .policy = CFTU_POLICY_OFF };

	cftu_start(&off);
}
EXPORT_SYMBOL_GPL(cftu_stop);

/* Returns the channel with the fewest tasks; equal ones take turns. */
static struct channel *least_loaded(void)
{
	static atomic_t turns = ATOMIC_INIT(0);
	unsigned int first = (unsigned int)atomic_inc_return_relaxed(&turns);
	struct channel *least = NULL;
	unsigned int i;

	for (i = 0; i < cftu_engine.count; i++) {
		struct channel *channel = &cftu_engine.channels[(first + i) % cftu_engine.count];

		if (READ_ONCE(channel->dead))
			continue;
		if (!least || atomic_read(&channel->load) < atomic_read(&least->load))
			least = channel;
	}
	return least;
}

/* Returns the CPU's channel, or the next one that is alive. */
static struct channel *own_channel(unsigned int first)
{
	unsigned int i;

	if (first == NO_CHANNEL)
		return NULL;
	for (i = 0; i < cftu_engine.count; i++) {
		struct channel *channel = &cftu_engine.channels[(first + i) % cftu_engine.count];

		if (!READ_ONCE(channel->dead))
			return channel;
	}
	return NULL;
}

/*
 * Windows that a transfer waits for a low part. On a machine for which the windows are too
 * short a task may wake too late each time; then the transfer begins anyway.
 */
#define WINDOWS_AT_MOST 8

/*
 * Sleeps until a low channel's transfer may begin. Returns how many pieces fit. If none fits
 * into the rest of this low part, waits for the next one; if none fits into a whole low
 * part, allows one piece. A fatal signal ends the wait.
 */
static unsigned int wait_for_low_part(struct channel *channel, unsigned int pieces)
{
	u64 window = state.quantum_high_ns + state.quantum_low_ns, part, began = ktime_get_ns();
	u64 piece_ns = max(channel->piece_ns, 1ULL), fit = 0, now;
	unsigned int waited;

	for (waited = 0;; waited++) {
		ktime_t next;

		now = ktime_get_ns();
		div64_u64_rem(now - state.origin_ns, window, &part);
		if (part >= state.quantum_high_ns) {
			fit = div64_u64(window - part, piece_ns);
			if (fit || waited)
				break;
		}
		if (waited == WINDOWS_AT_MOST || fatal_signal_pending(current))
			break;
		next = ns_to_ktime(now - part + state.quantum_high_ns +
				   (part < state.quantum_high_ns ? 0 : window));
		set_current_state(TASK_KILLABLE);
		schedule_hrtimeout_range(&next, 0, HRTIMER_MODE_ABS);
	}
	channel->counted.paused_ns += now - began;
	return clamp_t(u64, fit, 1, pieces);
}

/* Locks the claim's channel; no channel is left if it has died while this task waited. */
static int lock_channel(struct claim *claim)
{
	int err;

	atomic_inc(&claim->channel->load);
	err = rt_mutex_lock_killable(&claim->channel->lock);
	if (!err && !claim->channel->dead)
		return 0;
	if (!err)
		rt_mutex_unlock(&claim->channel->lock);
	atomic_dec(&claim->channel->load);
	claim->channel = NULL;
	return err;
}

int cftu_policy_claim(struct claim *claim)
{
	int err = down_read_killable(&lock);

	if (err)
		return err;
	switch (state.kind) {
	case CFTU_POLICY_OFF:
		claim->channel = NULL;
		break;
	case CFTU_POLICY_SHARED:
		claim->channel = least_loaded();
		break;
	default:
		claim->channel = own_channel(state.channel_of[raw_smp_processor_id()]);
	}
	if (claim->channel)
		err = lock_channel(claim);
	if (err)
		goto release;
	if (!claim->channel)
		return 0;
	claim->pieces = TRANSFER_PIECES;
	claim->timeout_ns = clamp(READ_ONCE(timeout_ms), 1U, TIMEOUT_MS_MAX) * (u64)NSEC_PER_MSEC;
	if (state.kind != CFTU_POLICY_PRIORITY || is_high(claim->channel->index))
		return 0;
	/* Pauses stretch a transfer: add their share to the timeout. */
	claim->timeout_ns += 2 * state.quantum_high_ns +
		mul_u64_u64_div_u64(claim->timeout_ns, state.quantum_high_ns, state.quantum_low_ns);
	if (!cftu_engine.can_pause)
		claim->pieces = wait_for_low_part(claim->channel, claim->pieces);
	if (!fatal_signal_pending(current))
		return 0;
	err = -EINTR;
release:
	cftu_policy_release(claim);
	return err;
}

void cftu_policy_release(const struct claim *claim)
{
	if (claim->channel) {
		rt_mutex_unlock(&claim->channel->lock);
		atomic_dec(&claim->channel->load);
	}
	up_read(&lock);
}

void cftu_policy_show(struct cftu_info *info)
{
	down_read(&lock);
	info->policy = state.kind;
	info->flags |= state.folded ? CFTU_FOLDED : 0;
	if (state.kind == CFTU_POLICY_PRIORITY) {
		info->high = state.high;
		info->quantum_high_ns = state.quantum_high_ns;
		info->quantum_low_ns = state.quantum_low_ns;
	}
	up_read(&lock);
}

u64 cftu_policy_times(void)
{
	return READ_ONCE(state.times);
}

bool cftu_policy_is_off(void)
{
	/* May be out of date: a transfer checks again, under the lock. */
	return data_race(state.kind) == CFTU_POLICY_OFF;
}

bool cftu_policy_is_high(unsigned int channel)
{
	bool high;

	down_read(&lock);
	high = is_high(channel);
	up_read(&lock);
	return high;
}

int cftu_policy_start(void)
{
	struct cftu_policy wanted = { .flags = fold ? CFTU_FOLD : 0 };
	int kind, err;

	kind = policy ? sysfs_match_string(names, policy) : cftu_kernel_copies_policy();
	if (kind < 0) {
		pr_err("policy=%s: give off, exclusive, shared or priority\n", policy);
		return -EINVAL;
	}
	wanted.policy = kind;
	err = cftu_start(&wanted);
	if (err)
		pr_err("policy=%s: %u CPUs, %u channels: give fold=1 for CPUs to share one, or policy=shared\n",
		       names[kind], num_online_cpus(), cftu_engine.count);
	return err;
}
