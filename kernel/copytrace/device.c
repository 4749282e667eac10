// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/copytrace: a device for each function, and the module as a whole.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/capability.h>
#include <linux/cpumask.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/poll.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "../include/memwarden/version.h"
#include "ring.h"
#include "source.h"

static const struct file_operations operations;

static struct miscdevice devices[FUNCTIONS] = {
	[FROM_USER] = { .name = "copytrace!from_user" },
	[TO_USER] = { .name = "copytrace!to_user" },
	[UNDERSCORE_FROM_USER] = { .name = "copytrace!__from_user" },
	[UNDERSCORE_TO_USER] = { .name = "copytrace!__to_user" },
};

/**
 * struct opened - an open file
 * @function: the device's function
 * @ring: the ring that it claimed, until it is closed; NULL before
 */
struct opened {
	enum copytrace_function function;
	struct copytrace_ring *ring;
};

static int device_open(struct inode *inode, struct file *file)
{
	struct miscdevice *device = file->private_data;
	struct opened *opened = kzalloc(sizeof(*opened), GFP_KERNEL);

	if (!opened)
		return -ENOMEM;
	opened->function = device - devices;
	file->private_data = opened;
	return 0;
}

/* For callers without the lock: a ring that is seen here is initialised. */
static struct copytrace_ring *claimed_ring(const struct opened *opened)
{
	/* Pairs with claim_ring(). */
	return smp_load_acquire(&opened->ring);
}

/* Copies that the source lost while the ring was open. */
static u64 missed_by(const struct copytrace_ring *ring)
{
	u64 missed = ring->missed;

	if (copytrace_ring_is_open(ring))
		missed += copytrace_source_missed(ring->function) - ring->missed_before;
	return missed;
}

/* Copies that end from now on are not recorded. */
static void close_ring(struct copytrace_ring *ring)
{
	if (!copytrace_ring_is_open(ring))
		return;
	ring->missed = missed_by(ring);
	copytrace_ring_close(ring);
	/* Copies that are being recorded now are complete after this grace period. */
	ring->closed = get_state_synchronize_rcu();
}

static void stop_ring(struct copytrace_ring *ring)
{
	if (!ring->started)
		return;
	close_ring(ring);
	copytrace_source_stop();
	/* The source may go on for other rings, so wait for this ring's last records here. */
	cond_synchronize_rcu(ring->closed);
	ring->started = false;
}

static int device_release(struct inode *inode, struct file *file)
{
	struct opened *opened = file->private_data;

	mutex_lock(&copytrace_rings_lock);
	if (opened->ring) {
		stop_ring(opened->ring);
		copytrace_ring_release(opened->ring);
	}
	mutex_unlock(&copytrace_rings_lock);
	kfree(opened);
	return 0;
}

/* Kernel addresses go to readers that perf would tell them too; others get zeros. */
static int claim_ring(struct opened *opened, u32 cpu)
{
	struct copytrace_ring *ring;
	int err;

	if (opened->ring || cpu >= nr_cpu_ids)
		return -EINVAL;
	cpu = array_index_nospec(cpu, nr_cpu_ids);
	if (!cpu_possible(cpu))
		return -EINVAL;
	ring = copytrace_ring_of(opened->function, cpu);
	err = copytrace_ring_claim(ring, perfmon_capable());
	if (err)
		return err;
	/* Pairs with claimed_ring(). */
	smp_store_release(&opened->ring, ring);
	return 0;
}

static int start_ring(struct copytrace_ring *ring)
{
	int err;

	if (!ring)
		return -EINVAL;
	if (!ring->started) {
		err = copytrace_source_start();
		if (err)
			return err;
		ring->started = true;
	}
	if (!copytrace_ring_is_open(ring)) {
		ring->missed_before = copytrace_source_missed(ring->function);
		copytrace_ring_open(ring);
	}
	return 0;
}

static int tell_info(struct copytrace_info __user *argument)
{
	const struct copytrace_info info = {
		.version = COPYTRACE_VERSION,
		.source = copytrace_source_kind(),
		.cpus = nr_cpu_ids,
		.records = copytrace_ring_records(),
		.ring_bytes = copytrace_ring_bytes(),
		.records_at = PAGE_SIZE,
		.flags = copytrace_source_flags() |
			 (perfmon_capable() ? 0 : COPYTRACE_NO_ADDRESSES),
		.ticks_hz = copytrace_source_ticks_hz(),
	};

	return copy_to_user(argument, &info, sizeof(info)) ? -EFAULT : 0;
}

static int tell_counts(const struct copytrace_ring *ring, struct copytrace_counts __user *argument)
{
	struct copytrace_counts counts = {};

	if (!ring)
		return -EINVAL;
	counts.recorded = local_read(&ring->recorded);
	counts.dropped = local_read(&ring->dropped);
	mutex_lock(&copytrace_rings_lock);
	counts.missed = missed_by(ring);
	mutex_unlock(&copytrace_rings_lock);
	return copy_to_user(argument, &counts, sizeof(counts)) ? -EFAULT : 0;
}

static long device_ioctl(struct file *file, unsigned int command, unsigned long argument_)
{
	void __user *argument = (void __user *)argument_;
	struct opened *opened = file->private_data;
	u32 cpu;
	int err;

	switch (command) {
	case COPYTRACE_INFO:
		return tell_info(argument);
	case COPYTRACE_COUNTS:
		return tell_counts(claimed_ring(opened), argument);
	case COPYTRACE_CLAIM:
		if (get_user(cpu, (u32 __user *)argument))
			return -EFAULT;
		break;
	case COPYTRACE_START:
	case COPYTRACE_CLOSE:
	case COPYTRACE_STOP:
		break;
	default:
		return -ENOTTY;
	}
	if (mutex_lock_interruptible(&copytrace_rings_lock))
		return -ERESTARTSYS;
	err = 0;
	if (command == COPYTRACE_CLAIM)
		err = claim_ring(opened, cpu);
	else if (command == COPYTRACE_START)
		err = start_ring(opened->ring);
	else if (!opened->ring)
		err = -EINVAL;
	else if (command == COPYTRACE_CLOSE)
		close_ring(opened->ring);
	else
		stop_ring(opened->ring);
	mutex_unlock(&copytrace_rings_lock);
	return err;
}

static int device_mmap(struct file *file, struct vm_area_struct *area)
{
	struct opened *opened = file->private_data;
	struct copytrace_ring *ring = claimed_ring(opened);

	if (!ring || area->vm_pgoff || area->vm_end - area->vm_start != copytrace_ring_bytes())
		return -EINVAL;
	return remap_vmalloc_range(area, ring->reader, 0);
}

static __poll_t device_poll(struct file *file, struct poll_table_struct *table)
{
	struct opened *opened = file->private_data;
	struct copytrace_ring *ring = claimed_ring(opened);

	if (!ring)
		return EPOLLERR;
	poll_wait(file, &ring->waiting, table);
	return copytrace_ring_is_worth_reading(ring) ? EPOLLIN | EPOLLRDNORM : 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = device_mmap,
	.poll = device_poll,
};

static int __init copytrace_init(void)
{
	int i, err;

	err = copytrace_source_choose();
	if (err)
		return err;
	err = copytrace_rings_init();
	if (err)
		return err;
	for (i = 0; i < FUNCTIONS; i++) {
		devices[i].minor = MISC_DYNAMIC_MINOR;
		devices[i].mode = 0600;
		devices[i].fops = &operations;
		err = misc_register(&devices[i]);
		if (err) {
			pr_err("no /dev/%s: error %d\n", devices[i].name, err);
			goto deregister;
		}
	}
	return 0;

deregister:
	while (i--)
		misc_deregister(&devices[i]);
	return err;
}

static void __exit copytrace_exit(void)
{
	int i;

	for (i = 0; i < FUNCTIONS; i++)
		misc_deregister(&devices[i]);
}

module_init(copytrace_init);
module_exit(copytrace_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Who copies how much between user and kernel memory");
MODULE_AUTHOR("The memwarden authors");
MODULE_VERSION(MEMWARDEN_VERSION);
