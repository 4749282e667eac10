// SPDX-License-Identifier: GPL-2.0-only
/*
 * memwarden_other_kernel: lets the running kernel look like one with other internals.
 *
 * memguard uses a flag and fields of the kernel that no interface guarantees, and checks them
 * when it runs. This module changes them between the kernel and that check:
 *
 *     modprobe memwarden_other_kernel scheduler=1     # the scheduler drops schedutil's flag
 *     modprobe memwarden_other_kernel perf=1          # perf keeps the distance elsewhere
 *     cat /sys/module/memwarden_other_kernel/parameters/changes
 */
#include <linux/err.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/perf_event.h>
#include <linux/sched.h>

static bool scheduler;
module_param(scheduler, bool, 0400);
MODULE_PARM_DESC(scheduler, "clear the flags of the deadline tasks that the kernel creates");

static bool perf;
module_param(perf, bool, 0400);
MODULE_PARM_DESC(perf, "set hw.last_period of the kernel's own events to 0");

static unsigned int changes;
module_param(changes, uint, 0400);
MODULE_PARM_DESC(changes, "how often something was changed; read only");

/* sched_setattr_nocheck(task, attr): the probe keeps the task until the function returns. */
static int keep_task(struct kretprobe_instance *call, struct pt_regs *regs)
{
	*(struct task_struct **)call->data = (void *)regs_get_kernel_argument(regs, 0);
	return 0;
}

static int clear_flags(struct kretprobe_instance *call, struct pt_regs *regs)
{
	struct task_struct *task = *(struct task_struct **)call->data;

	if (!regs_return_value(regs)) {
		task->dl.flags = 0;
		WRITE_ONCE(changes, changes + 1);
	}
	return 0;
}

static int clear_last_period(struct kretprobe_instance *call, struct pt_regs *regs)
{
	struct perf_event *event = (void *)regs_return_value(regs);

	if (!IS_ERR(event)) {
		event->hw.last_period = 0;
		WRITE_ONCE(changes, changes + 1);
	}
	return 0;
}

static struct kretprobe of_scheduler = {
	.kp.symbol_name = "sched_setattr_nocheck",
	.entry_handler = keep_task,
	.handler = clear_flags,
	.data_size = sizeof(struct task_struct *),
};

static struct kretprobe of_perf = {
	.kp.symbol_name = "perf_event_create_kernel_counter",
	.handler = clear_last_period,
};

static int __init other_kernel_init(void)
{
	int err = -EINVAL;

	if (scheduler) {
		err = register_kretprobe(&of_scheduler);
		if (err)
			return err;
	}
	if (perf) {
		err = register_kretprobe(&of_perf);
		if (err && scheduler)
			unregister_kretprobe(&of_scheduler);
	}
	return err;
}
module_init(other_kernel_init);

static void __exit other_kernel_exit(void)
{
	if (perf)
		unregister_kretprobe(&of_perf);
	if (scheduler)
		unregister_kretprobe(&of_scheduler);
}
module_exit(other_kernel_exit);

MODULE_DESCRIPTION("Lets the running kernel look like one with other internals");
MODULE_AUTHOR("The memwarden developers");
MODULE_LICENSE("GPL");
