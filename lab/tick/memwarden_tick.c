// SPDX-License-Identifier: GPL-2.0-only
/*
 * memwarden_tick: a periodic hard-irq timer on every CPU, staggered.
 *
 * For the lab's instruction-counted clock only. There the emulator runs the
 * CPUs one after the other on a single stream of instructions, and QEMU 7.2
 * lets a busy CPU run until the next timer deadline of any CPU. With only the
 * kernel's own ticks that is up to 4 ms, so a 1 ms period timer on another CPU
 * is handled late. A short timer on each CPU bounds the stretch.
 *
 * Nor is it the next CPU's turn then, but the first one's again: the others
 * have nothing left before the deadline that was reached. They get their turns
 * when something asks all CPUs to leave the emulator's loop, which a page fault
 * or an idle CPU does, and a busy one in the kernel need not for a third of a
 * second. So each timer asks, too; but where CPUs are few not every one, as
 * asks() says.
 */

#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/kernel.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/percpu.h>

#include "compat.h"

/* Below 10 us the tick itself would take most of the instructions. */
#define TICK_MIN_US 10
/* A second: slower than the kernel's own tick, hence without any effect. */
#define TICK_MAX_US 1000000

static unsigned int period_us = 50;
module_param(period_us, uint, 0444);
MODULE_PARM_DESC(period_us, "Period of each CPU's timer in us (10 to 1000000, default 50)");

static DEFINE_PER_CPU(struct hrtimer, tick_timer);
static ktime_t tick_period;
static enum cpuhp_state tick_state;

/*
 * Every other CPU runs next, each until the next deadline. It is asked by whatever
 * concerns all CPUs; flushing a page that nobody has does, and changes nothing.
 * The lab's machines are arm64; elsewhere it is compiled, and never loaded.
 */
static void give_turns(void)
{
#ifdef CONFIG_ARM64
	asm volatile("dsb ishst\n\t"
		     "tlbi vae1is, xzr\n\t"
		     "dsb ish" : : : "memory");
#endif
}

/*
 * Whether the timer that is handled now gives the others their turns. Who asks as
 * soon as it has its own turn gives that away. Of four CPUs and more each still has
 * its part; of two busy ones, where there are two or three, one was seen to have
 * nothing but its timers. What serves two and three was found by measuring (the
 * shares are in docs/lab.md).
 *
 * Of two, the second alone asks: the first is next after every deadline anyway. Of
 * three, one whose timer was due while another ran keeps the turn that it just got.
 */
static bool asks(struct hrtimer *timer)
{
	ktime_t late = ktime_sub(hrtimer_cb_get_time(timer), hrtimer_get_expires(timer));

	switch (num_online_cpus()) {
	case 2:
		return smp_processor_id() != cpumask_first(cpu_online_mask);
	case 3:
		return late < tick_period / 6;
	default:
		return true;
	}
}

static enum hrtimer_restart tick_fire(struct hrtimer *timer)
{
	bool asking = asks(timer);

	hrtimer_forward_now(timer, tick_period);
	if (asking)
		give_turns();
	return HRTIMER_RESTART;
}

/*
 * Runs on @cpu itself. The first expiry is a whole period's boundary plus the
 * CPU's share of one, so that the CPUs' timers are spread evenly over it.
 */
static int tick_cpu_online(unsigned int cpu)
{
	struct hrtimer *timer = this_cpu_ptr(&tick_timer);
	u64 period = ktime_to_ns(tick_period);
	u64 now = ktime_to_ns(ktime_get());
	u64 first;

	div64_u64_rem(now, period, &first);
	first = now - first + period + div_u64(period * cpu, nr_cpu_ids);

	hrtimer_setup(timer, tick_fire, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_PINNED_HARD);
	hrtimer_start(timer, ns_to_ktime(first), HRTIMER_MODE_ABS_PINNED_HARD);
	return 0;
}

static int tick_cpu_offline(unsigned int cpu)
{
	hrtimer_cancel(per_cpu_ptr(&tick_timer, cpu));
	return 0;
}

static int __init tick_init(void)
{
	int state;

	if (period_us < TICK_MIN_US || period_us > TICK_MAX_US) {
		pr_err("memwarden_tick: period_us=%u is not within %d..%d\n",
		       period_us, TICK_MIN_US, TICK_MAX_US);
		return -EINVAL;
	}
	tick_period = ns_to_ktime((u64)period_us * NSEC_PER_USEC);

	state = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "memwarden/tick:online",
				  tick_cpu_online, tick_cpu_offline);
	if (state < 0)
		return state;
	tick_state = state;
	return 0;
}

static void __exit tick_exit(void)
{
	cpuhp_remove_state(tick_state);
}

module_init(tick_init);
module_exit(tick_exit);

MODULE_DESCRIPTION("Periodic timer on every CPU, for an emulator's instruction-counted clock");
MODULE_AUTHOR("The memwarden developers");
MODULE_LICENSE("GPL");
