// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/cftu: copies for user space, timed; and the module as a whole.
 *
 * Each open file has a region of kernel memory and its pinned memory. Requests that
 * change these are alone in the file; copies share it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/fs.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/rwsem.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/xarray.h>

#include "../include/memwarden/version.h"
#include "channel.h"
#include "copy.h"
#include "flush.h"
#include "kernel-copies.h"
#include "policy.h"
#include "region.h"

/**
 * struct opened - what an open file has
 * @lock: over all of it
 * @region: kernel memory
 * @pins: struct cftu_pinned by id
 */
struct opened {
	struct rw_semaphore lock;
	struct region region;
	struct xarray pins;
};

static int device_open(struct inode *inode, struct file *file)
{
	struct opened *opened = kzalloc(sizeof(*opened), GFP_KERNEL);

	if (!opened)
		return -ENOMEM;
	init_rwsem(&opened->lock);
	xa_init_flags(&opened->pins, XA_FLAGS_ALLOC1);
	file->private_data = opened;
	return 0;
}

static int device_release(struct inode *inode, struct file *file)
{
	struct opened *opened = file->private_data;
	struct cftu_pinned *pinned;
	unsigned long id;

	xa_for_each(&opened->pins, id, pinned)
		cftu_unpin(pinned);
	xa_destroy(&opened->pins);
	cftu_region_put(&opened->region);
	kfree(opened);
	return 0;
}

static int set_region(struct opened *opened, const struct cftu_region *request)
{
	int err = 0;

	if (request->bytes > CFTU_REGION_MAX)
		return -EINVAL;
	if (down_write_killable(&opened->lock))
		return -EINTR;
	/* Free the previous region first, so that memory need not hold both. */
	cftu_region_put(&opened->region);
	if (request->bytes)
		err = cftu_region_get(&opened->region, request->bytes);
	up_write(&opened->lock);
	return err;
}

static int add_pin(struct opened *opened, struct cftu_pin *request)
{
	struct cftu_pinned *pinned;
	int err;

	if ((request->flags & ~CFTU_WRITABLE) || request->bytes > CFTU_LENGTH_MAX)
		return -EINVAL;
	pinned = cftu_pin(request->address, request->bytes, request->flags & CFTU_WRITABLE);
	if (IS_ERR(pinned))
		return PTR_ERR(pinned);
	err = xa_alloc(&opened->pins, &request->id, pinned, xa_limit_31b, GFP_KERNEL_ACCOUNT);
	if (err)
		cftu_unpin(pinned);
	return err;
}

static int remove_pin(struct opened *opened, u32 id)
{
	struct cftu_pinned *pinned;

	if (down_write_killable(&opened->lock))
		return -EINTR;
	pinned = xa_erase(&opened->pins, id);
	up_write(&opened->lock);
	if (!pinned)
		return -EINVAL;
	cftu_unpin(pinned);
	return 0;
}

/* True if a copy's fields are valid; under the file's lock. */
static bool is_copy(const struct opened *opened, const struct cftu_copy *copy)
{
	size_t region = opened->region.bytes;

	return copy->bytes && copy->bytes <= CFTU_LENGTH_MAX && copy->offset <= region &&
	       copy->bytes <= region - copy->offset && copy->direction <= CFTU_TO_USER &&
	       copy->engine <= CFTU_DMA && !(copy->flags & ~CFTU_UNCACHED);
}

/* Invalidates both sides' lines; the user's memory is pinned for this. */
static int flush_both(void *kernel, const struct cftu_copy *copy, struct cftu_pinned *pinned,
		      size_t offset)
{
	struct cftu_pinned *mine = NULL;
	size_t at;

	if (!pinned) {
		mine = cftu_pin(copy->address, copy->bytes, copy->direction == CFTU_TO_USER);
		if (IS_ERR(mine))
			return PTR_ERR(mine);
		pinned = mine;
		offset = 0;
	}
	for (at = 0; at < copy->bytes; at += PAGE_SIZE) {
		cftu_flush_lines(kernel + at, min_t(size_t, PAGE_SIZE, copy->bytes - at));
		cond_resched();
	}
	cftu_pinned_flush(pinned, offset, copy->bytes);
	if (mine)
		cftu_unpin(mine);
	return 0;
}

static int copy_once(struct opened *opened, struct cftu_copy *copy)
{
	struct cftu_pinned *pinned = NULL;
	struct copied copied = { .channel = CFTU_NO_CHANNEL };
	unsigned long left = 0;
	size_t offset = 0;
	void *kernel;
	int err = 0;

	if (down_read_killable(&opened->lock))
		return -EINTR;
	if (!is_copy(opened, copy)) {
		err = -EINVAL;
		goto out;
	}
	kernel = opened->region.memory + array_index_nospec(copy->offset, opened->region.bytes);
	if (copy->pin) {
		pinned = xa_load(&opened->pins, copy->pin);
		if (!pinned || !cftu_pinned_holds(pinned, copy->address, copy->bytes, &offset)) {
			err = -EINVAL;
			goto out;
		}
		if (copy->direction == CFTU_TO_USER && !cftu_pinned_is_writable(pinned)) {
			err = -EPERM;
			goto out;
		}
	}
	if (copy->flags & CFTU_UNCACHED) {
		err = flush_both(kernel, copy, pinned, offset);
		if (err)
			goto out;
	}
	copy->cpu = raw_smp_processor_id();
	copy->begin_ns = ktime_get_ns();
	if (copy->engine == CFTU_CPU)
		left = cftu_copy_by_cpu(kernel, copy->address, copy->bytes, copy->direction);
	else if (pinned)
		err = cftu_copy_pinned(kernel, pinned, offset, copy->bytes, copy->direction,
				       &copied);
	else
		left = cftu_copy_user(kernel, copy->address, copy->bytes, copy->direction, &copied);
	copy->end_ns = ktime_get_ns();
	copy->not_copied = left;
	copy->engine_bytes = copied.engine_bytes;
	copy->channel = copied.channel;
out:
	up_read(&opened->lock);
	return err;
}

static int copy_all(struct opened *opened, struct cftu_batch *batch)
{
	struct cftu_copy __user *at = u64_to_user_ptr(batch->copies);
	struct cftu_copy copy;
	int err;

	batch->done = 0;
	if (!batch->count || batch->count > CFTU_BATCH_MAX || batch->reserved)
		return -EINVAL;
	for (; batch->done < batch->count; batch->done++, at++) {
		if (signal_pending(current))
			return -EINTR;
		if (copy_from_user(&copy, at, sizeof(copy)))
			return -EFAULT;
		err = copy_once(opened, &copy);
		if (err)
			return err;
		if (copy_to_user(at, &copy, sizeof(copy)))
			return -EFAULT;
		cond_resched();
	}
	return 0;
}

static void tell_info(struct opened *opened, struct cftu_info *info)
{
	memset(info, 0, sizeof(*info));
	info->version = CFTU_VERSION;
	info->channels = cftu_engine.count;
	info->flags = (cftu_engine.can_pause ? CFTU_CAN_PAUSE : 0) |
		      (cftu_engine.coherent ? CFTU_COHERENT : 0) |
		      (READ_ONCE(opened->region.reserved) ? CFTU_RESERVED : 0) |
		      (cftu_engine.compares ? CFTU_COMPARES : 0) |
		      (cftu_engine.known->stops ? CFTU_STOPS : 0);
	info->min_bytes = cftu_copy_min_bytes();
	info->poll_bytes = READ_ONCE(cftu_engine.poll_bytes);
	info->region_bytes = READ_ONCE(opened->region.bytes);
	info->align_bytes = cftu_engine.align;
	strscpy(info->provider, cftu_engine.provider, sizeof(info->provider));
	cftu_policy_show(info);
}

static int tell_channel(struct cftu_channel *request)
{
	struct channel *channel;

	if (request->channel >= cftu_engine.count)
		return -EINVAL;
	channel = &cftu_engine.channels[array_index_nospec(request->channel, cftu_engine.count)];
	/* A sample: each number is valid, but they may be from different times. */
	*request = data_race(channel->counted);
	request->flags = (cftu_policy_is_high(channel->index) ? CFTU_HIGH : 0) |
			 (READ_ONCE(channel->dead) ? CFTU_DEAD : 0);
	return 0;
}

static long device_ioctl(struct file *file, unsigned int command, unsigned long argument_)
{
	void __user *argument = (void __user *)argument_;
	struct opened *opened = file->private_data;
	union {
		struct cftu_info info;
		struct cftu_policy policy;
		struct cftu_region region;
		struct cftu_pin pin;
		struct cftu_copy copy;
		struct cftu_batch batch;
		struct cftu_channel channel;
		struct cftu_statistics statistics;
		u32 id;
	} request;
	int err = 0;

	/* Check before the size is used: a request of another size is not ours. */
	switch (command) {
	case CFTU_INFO:
	case CFTU_POLICY:
	case CFTU_REGION:
	case CFTU_PIN:
	case CFTU_UNPIN:
	case CFTU_COPY:
	case CFTU_BATCH:
	case CFTU_CHANNEL:
	case CFTU_STATISTICS:
		break;
	default:
		return -ENOTTY;
	}
	if ((_IOC_DIR(command) & _IOC_WRITE) &&
	    copy_from_user(&request, argument, _IOC_SIZE(command)))
		return -EFAULT;

	switch (command) {
	case CFTU_INFO:
		tell_info(opened, &request.info);
		break;
	case CFTU_POLICY:
		err = cftu_start(&request.policy);
		break;
	case CFTU_REGION:
		err = set_region(opened, &request.region);
		break;
	case CFTU_PIN:
		err = add_pin(opened, &request.pin);
		break;
	case CFTU_UNPIN:
		err = remove_pin(opened, request.id);
		break;
	case CFTU_COPY:
		err = copy_once(opened, &request.copy);
		break;
	case CFTU_BATCH:
		err = copy_all(opened, &request.batch);
		break;
	case CFTU_CHANNEL:
		err = tell_channel(&request.channel);
		break;
	case CFTU_STATISTICS:
		cftu_copy_statistics(&request.statistics);
		break;
	}
	/* A batch reports the number of copies done even if it ends with an error. */
	if ((err && command != CFTU_BATCH) || !(_IOC_DIR(command) & _IOC_READ))
		return err;
	if (copy_to_user(argument, &request, _IOC_SIZE(command))) {
		/* A caller that doesn't know the id can't release it. */
		if (command == CFTU_PIN)
			remove_pin(opened, request.pin.id);
		return -EFAULT;
	}
	return err;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "cftu",
	.mode = 0600,
	.fops = &operations,
};

static int __init cftu_init(void)
{
	int err;

	err = cftu_engine_start();
	if (err)
		return err;
	/* Before the first transfer: wrong parameters must not be found after one is lost. */
	err = cftu_policy_start();
	if (err)
		goto stop_engine;
	cftu_engine_measure();
	cftu_copy_measure_min_bytes();
	err = misc_register(&device);
	if (err) {
		pr_err("no /dev/cftu: error %d\n", err);
		goto stop_policy;
	}
	cftu_kernel_copies_start();
	return 0;

stop_policy:
	cftu_stop();
	/* A failed load would free the code that the driver may call back. */
	if (cftu_engine_has_lost()) {
		pr_err("a transfer was lost at load: cftu stays loaded until the next boot, without /dev/cftu, and the CPU copies\n");
		return 0;
	}
stop_engine:
	cftu_engine_stop();
	return err;
}

static void __exit cftu_exit(void)
{
	cftu_kernel_copies_stop();
	misc_deregister(&device);
	cftu_stop();
	cftu_engine_stop();
}

module_init(cftu_init);
module_exit(cftu_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Copies between user and kernel memory by DMA engines");
MODULE_AUTHOR("The memwarden authors");
MODULE_VERSION(MEMWARDEN_VERSION);
