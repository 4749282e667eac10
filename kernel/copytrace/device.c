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
 * struct opened - what an open file has
 * @function: of its device
 * @ring: that it claimed, or NULL; once it has one, that stays
 */
struct opened {
	enum function function;
	struct ring *ring;
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

/* For those who take no lock: a ring that is seen is one that was cleared. */
static struct ring *claimed(const struct opened *opened)
{
	/* Pairs with claim(). */
	return smp_load_acquire(&opened->ring);
}

/* No copy that ends from now on is recorded. */
static void close_ring(struct ring *ring)
{
	if (!ring_is_open(ring))
		return;
	ring_close(ring);
	/* What is being recorded is, with preemption off, until these have passed. */
	ring->closed = get_state_synchronize_rcu();
}

static void stop(struct ring *ring)
{
	if (!ring->started)
		return;
	close_ring(ring);
	source_stop();
	/* Others may go on: their source does, and what is in this ring is whole only now. */
	cond_synchronize_rcu(ring->closed);
	ring->started = false;
}

static int device_release(struct inode *inode, struct file *file)
{
	struct opened *opened = file->private_data;

	mutex_lock(&rings_lock);
	if (opened->ring) {
		stop(opened->ring);
		ring_release(opened->ring);
	}
	mutex_unlock(&rings_lock);
	kfree(opened);
	return 0;
}

/* The kernel's addresses are for readers that may ask perf for them; others get zeros. */
static int claim(struct opened *opened, u32 cpu)
{
	struct ring *ring;
	int err;

	if (opened->ring || cpu >= nr_cpu_ids)
		return -EINVAL;
	cpu = array_index_nospec(cpu, nr_cpu_ids);
	if (!cpu_possible(cpu))
		return -EINVAL;
	ring = ring_of(opened->function, cpu);
	err = ring_claim(ring, perfmon_capable());
	if (err)
		return err;
	/* Pairs with claimed(). */
	smp_store_release(&opened->ring, ring);
	return 0;
}

static int start(struct ring *ring)
{
	int err;

	if (!ring)
		return -EINVAL;
	if (!ring->started) {
		err = source_start();
		if (err)
			return err;
		ring->started = true;
	}
	ring_open(ring);
	return 0;
}

static int tell_info(struct copytrace_info __user *argument)
{
	const struct copytrace_info info = {
		.version = COPYTRACE_VERSION,
		.source = source(),
		.cpus = nr_cpu_ids,
		.records = ring_records(),
		.ring_bytes = ring_bytes(),
		.records_at = PAGE_SIZE,
		.flags = source_flags() | (perfmon_capable() ? 0 : COPYTRACE_NO_ADDRESSES),
		.ticks_hz = source_ticks_hz(),
	};

	return copy_to_user(argument, &info, sizeof(info)) ? -EFAULT : 0;
}

static int tell_counts(const struct ring *ring, struct copytrace_counts __user *argument)
{
	struct copytrace_counts counts = {};

	if (!ring)
		return -EINVAL;
	counts.recorded = local_read(&ring->recorded);
	counts.dropped = local_read(&ring->dropped);
	mutex_lock(&rings_lock);
	counts.missed = source_missed();
	mutex_unlock(&rings_lock);
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
		return tell_counts(claimed(opened), argument);
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
	if (mutex_lock_interruptible(&rings_lock))
		return -ERESTARTSYS;
	err = 0;
	if (command == COPYTRACE_CLAIM)
		err = claim(opened, cpu);
	else if (command == COPYTRACE_START)
		err = start(opened->ring);
	else if (!opened->ring)
		err = -EINVAL;
	else if (command == COPYTRACE_CLOSE)
		close_ring(opened->ring);
	else
		stop(opened->ring);
	mutex_unlock(&rings_lock);
	return err;
}

static int device_mmap(struct file *file, struct vm_area_struct *area)
{
	struct opened *opened = file->private_data;
	struct ring *ring = claimed(opened);

	if (!ring || area->vm_pgoff || area->vm_end - area->vm_start != ring_bytes())
		return -EINVAL;
	return remap_vmalloc_range(area, ring->reader, 0);
}

static __poll_t device_poll(struct file *file, struct poll_table_struct *table)
{
	struct opened *opened = file->private_data;
	struct ring *ring = claimed(opened);

	if (!ring)
		return EPOLLERR;
	poll_wait(file, &ring->waiting, table);
	return ring_is_worth_reading(ring) ? EPOLLIN | EPOLLRDNORM : 0;
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

	err = source_choose();
	if (err)
		return err;
	err = rings_init();
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
