// SPDX-License-Identifier: GPL-2.0-only
/*
 * memwarden_stall: /dev/memwarden_stall, whose page faults wait for the test.
 *
 * A fault on its mapping waits until a byte is written to the device, like a FUSE fault that
 * waits for its server. A read returns the number of waiting tasks. The lab's kernels have
 * neither FUSE nor userfaultfd.
 */
#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/module.h>
#include <linux/wait.h>

static DECLARE_WAIT_QUEUE_HEAD(queue);
static atomic_t waiting;
static bool open_to_all;

/* Waits without mmap_lock, as userfaultfd does. */
static vm_fault_t stall_fault(struct vm_fault *fault)
{
	if (READ_ONCE(open_to_all)) {
		fault->page = alloc_page(GFP_KERNEL | __GFP_ZERO);
		return fault->page ? 0 : VM_FAULT_OOM;
	}
	if (!(fault->flags & FAULT_FLAG_ALLOW_RETRY) || (fault->flags & FAULT_FLAG_RETRY_NOWAIT))
		return VM_FAULT_SIGBUS;
	mmap_read_unlock(fault->vma->vm_mm);
	atomic_inc(&waiting);
	/* The fault's caller handles a fatal signal. */
	wait_event_killable(queue, READ_ONCE(open_to_all));
	atomic_dec(&waiting);
	return VM_FAULT_RETRY;
}

static const struct vm_operations_struct stall_mapping = { .fault = stall_fault };

static int stall_mmap(struct file *file, struct vm_area_struct *area)
{
	WRITE_ONCE(open_to_all, false);
	area->vm_ops = &stall_mapping;
	return 0;
}

static ssize_t stall_write(struct file *file, const char __user *user, size_t bytes, loff_t *at)
{
	WRITE_ONCE(open_to_all, true);
	wake_up_all(&queue);
	return bytes;
}

static ssize_t stall_read(struct file *file, char __user *user, size_t bytes, loff_t *at)
{
	char text[16];
	int length = scnprintf(text, sizeof(text), "%d\n", atomic_read(&waiting));

	return simple_read_from_buffer(user, bytes, at, text, length);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.mmap = stall_mmap,
	.read = stall_read,
	.write = stall_write,
};

static char *name = "memwarden_stall";
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "the device's name, to take another module's (default memwarden_stall)");

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.mode = 0600,
	.fops = &operations,
};

static int __init stall_init(void)
{
	device.name = name;
	return misc_register(&device);
}

static void __exit stall_exit(void)
{
	misc_deregister(&device);
}

module_init(stall_init);
module_exit(stall_exit);

MODULE_DESCRIPTION("Memory whose faults wait until they are told to go on");
MODULE_AUTHOR("The memwarden developers");
MODULE_LICENSE("GPL");
