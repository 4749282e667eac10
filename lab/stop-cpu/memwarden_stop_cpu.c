// SPDX-License-Identifier: GPL-2.0-only
/*
 * memwarden_stop_cpu: stops a CPU at a function of the kernel, as a hypervisor or firmware does.
 *
 * Each time that the CPU comes to the function, but at most once in @every_us, it waits there for
 * @us with interrupts off. The other CPUs go on.
 *
 *     modprobe memwarden_stop_cpu at=mw_period_join cpu=1 us=8000 every_us=20000
 *     cat /sys/module/memwarden_stop_cpu/parameters/stops
 */
#include <linux/delay.h>
#include <linux/kprobes.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/smp.h>

static char *at;
module_param(at, charp, 0400);
MODULE_PARM_DESC(at, "the function");

static int cpu = 1;
module_param(cpu, int, 0400);
MODULE_PARM_DESC(cpu, "the CPU that is stopped (default 1)");

static unsigned int us = 8000;
module_param(us, uint, 0400);
MODULE_PARM_DESC(us, "for how long, in microseconds (default 8000)");

static unsigned int every_us = 20000;
module_param(every_us, uint, 0400);
MODULE_PARM_DESC(every_us, "the least time between the beginnings of two stops (default 20000)");

static unsigned int stops;
module_param(stops, uint, 0400);
MODULE_PARM_DESC(stops, "how often it was stopped; read only");

/* Of the CPU that is stopped. */
static u64 next;

static int stop(struct kprobe *probe, struct pt_regs *regs)
{
	u64 now = ktime_get_mono_fast_ns();

	if (smp_processor_id() != cpu || now < next)
		return 0;
	next = now + (u64)every_us * NSEC_PER_USEC;
	WRITE_ONCE(stops, stops + 1);
	/* udelay() takes no more than some milliseconds at once. */
	mdelay(us / 1000);
	udelay(us % 1000);
	return 0;
}

static struct kprobe probe = { .pre_handler = stop };

static int __init stop_cpu_init(void)
{
	if (!at)
		return -EINVAL;
	probe.symbol_name = at;
	return register_kprobe(&probe);
}
module_init(stop_cpu_init);

static void __exit stop_cpu_exit(void)
{
	unregister_kprobe(&probe);
}
module_exit(stop_cpu_exit);

MODULE_DESCRIPTION("Stops a CPU at a function of the kernel");
MODULE_AUTHOR("The memwarden developers");
MODULE_LICENSE("GPL");
