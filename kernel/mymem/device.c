// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/mymem: kernel memory as a file.
 *
 * One reader-writer lock covers all of the memory, so that a call is atomic against other
 * calls, whatever its length. Accesses through a mapping bypass the lock.
 *
 * User memory is copied under the lock, and the copy may fault; so code that runs under
 * mmap_lock, such as mmap, must not take it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <memwarden/mymem.h>

#include "../include/memwarden/version.h"
#include "mymem.h"

#define SIZE_MAX_BYTES SZ_1G
/* Bytes between two calls of cond_resched(): a fraction of a millisecond. */
#define STRETCH SZ_1M

static unsigned long size = SZ_512K;
module_param(size, ulong, 0444);
MODULE_PARM_DESC(size, "bytes of memory (default 524288, 1 to 1073741824)");

static bool strict = true;
module_param(strict, bool, 0444);
MODULE_PARM_DESC(strict, "refuse a range that passes the end (default), or shorten it (0)");

static bool exclusive;
module_param(exclusive, bool, 0444);
MODULE_PARM_DESC(exclusive, "let one open the device at a time (default 0)");

static void *memory;
static DECLARE_RWSEM(lock);
static atomic_t opened = ATOMIC_INIT(0);

/*
 * admit() - how many of the @count bytes from @pos a call may access, or an errno. @at_end is
 * the result for a call that begins at the end of the memory.
 */
static ssize_t admit(loff_t pos, size_t count, ssize_t at_end)
{
	if (pos < 0 || pos > size)
		return -EINVAL;
	if (!count)
		return 0;
	if (pos == size)
		return at_end;
	if (count <= size - pos)
		return count;
	return strict ? -EINVAL : size - pos;
}

/* The word at @offset, or NULL if the offset is out of range or unaligned. */
static atomic64_t *word(u64 offset)
{
	if (size < sizeof(u64) || offset > size - sizeof(u64) ||
	    !IS_ALIGNED(offset, sizeof(u64)))
		return NULL;
	return memory + offset;
}

static int fetch_add(u64 offset, u64 *operand)
{
	atomic64_t *at = word(offset);

	if (!at)
		return -EINVAL;
	if (down_write_killable(&lock))
		return -EINTR;
	*operand = atomic64_fetch_add(*operand, at);
	up_write(&lock);
	return 0;
}

static int compare_exchange(u64 offset, u64 *expected, u64 desired)
{
	atomic64_t *at = word(offset);

	if (!at)
		return -EINVAL;
	if (down_write_killable(&lock))
		return -EINTR;
	*expected = atomic64_cmpxchg(at, *expected, desired);
	up_write(&lock);
	return 0;
}

ssize_t mymem_read(void *to, size_t count, loff_t pos)
{
	ssize_t admitted = admit(pos, count, 0);
	size_t done, part;

	if (admitted <= 0)
		return admitted;
	if (down_read_killable(&lock))
		return -EINTR;
	for (done = 0; done < admitted; done += part) {
		part = min_t(size_t, admitted - done, STRETCH);
		memcpy(to + done, memory + pos + done, part);
		cond_resched();
	}
	up_read(&lock);
	return admitted;
}
EXPORT_SYMBOL_GPL(mymem_read);

ssize_t mymem_write(const void *from, size_t count, loff_t pos)
{
	ssize_t admitted = admit(pos, count, -ENOSPC);
	size_t done, part;

	if (admitted <= 0)
		return admitted;
	if (down_write_killable(&lock))
		return -EINTR;
	for (done = 0; done < admitted; done += part) {
		part = min_t(size_t, admitted - done, STRETCH);
		memcpy(memory + pos + done, from + done, part);
		cond_resched();
	}
	up_write(&lock);
	return admitted;
}
EXPORT_SYMBOL_GPL(mymem_write);

int mymem_fetch_add(loff_t offset, u64 *operand)
{
	return fetch_add(offset, operand);
}
EXPORT_SYMBOL_GPL(mymem_fetch_add);

static int device_open(struct inode *inode, struct file *file)
{
	if (exclusive && atomic_cmpxchg(&opened, 0, 1))
		return -EBUSY;
	/* Threads that share a descriptor take turns at its position, as with a file. */
	file->f_mode |= FMODE_ATOMIC_POS;
	return 0;
}

static int device_release(struct inode *inode, struct file *file)
{
	atomic_set(&opened, 0);
	return 0;
}

/* A fault fails the whole call; bytes before it may have been copied. */
static ssize_t device_read(struct file *file, char __user *to, size_t count, loff_t *pos)
{
	ssize_t admitted = admit(*pos, count, 0);
	size_t done, part, left = 0;

	if (admitted <= 0)
		return admitted;
	if (down_read_killable(&lock))
		return -EINTR;
	for (done = 0; done < admitted && !left; done += part) {
		part = min_t(size_t, admitted - done, STRETCH);
		left = copy_to_user(to + done, memory + *pos + done, part);
		cond_resched();
	}
	up_read(&lock);
	if (left)
		return -EFAULT;
	*pos += admitted;
	return admitted;
}

static ssize_t device_write(struct file *file, const char __user *from, size_t count,
			    loff_t *pos)
{
	ssize_t admitted = admit(*pos, count, -ENOSPC);
	size_t done, part, left = 0;

	if (admitted <= 0)
		return admitted;
	if (down_write_killable(&lock))
		return -EINTR;
	for (done = 0; done < admitted && !left; done += part) {
		part = min_t(size_t, admitted - done, STRETCH);
		left = copy_from_user(memory + *pos + done, from + done, part);
		cond_resched();
	}
	up_write(&lock);
	if (left)
		return -EFAULT;
	*pos += admitted;
	return admitted;
}

static loff_t device_llseek(struct file *file, loff_t offset, int whence)
{
	return fixed_size_llseek(file, offset, whence, size);
}

static long ioctl_fetch_add(void __user *argument)
{
	struct mymem_fetch_add request;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	err = fetch_add(request.offset, &request.operand);
	if (err)
		return err;
	return copy_to_user(argument, &request, sizeof(request)) ? -EFAULT : 0;
}

static long ioctl_compare_exchange(void __user *argument)
{
	struct mymem_compare_exchange request;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	err = compare_exchange(request.offset, &request.expected, request.desired);
	if (err)
		return err;
	return copy_to_user(argument, &request, sizeof(request)) ? -EFAULT : 0;
}

static long device_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	if (command != MYMEM_FETCH_ADD && command != MYMEM_COMPARE_EXCHANGE)
		return -ENOTTY;
	if (!(file->f_mode & FMODE_WRITE))
		return -EBADF;
	return command == MYMEM_FETCH_ADD ? ioctl_fetch_add((void __user *)argument) :
					    ioctl_compare_exchange((void __user *)argument);
}

static int device_mmap(struct file *file, struct vm_area_struct *vma)
{
	return remap_vmalloc_range(vma, memory, vma->vm_pgoff);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.read = device_read,
	.write = device_write,
	.llseek = device_llseek,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = device_mmap,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "mymem",
	.mode = 0600,
	.fops = &operations,
};

static int __init mymem_init(void)
{
	int err;

	if (!size || size > SIZE_MAX_BYTES) {
		pr_err("size=%lu: give 1 to %u bytes\n", size, SIZE_MAX_BYTES);
		return -EINVAL;
	}
	/* Unchecked, the OOM killer would end other programs before the allocation fails. */
	if (si_mem_available() >= (long)(size >> PAGE_SHIFT))
		memory = vmalloc_user(size);
	if (!memory) {
		pr_err("size=%lu: not enough memory on this machine\n", size);
		return -ENOMEM;
	}
	err = misc_register(&device);
	if (err) {
		pr_err("no /dev/mymem: error %d\n", err);
		vfree(memory);
		return err;
	}
	pr_info("/dev/mymem has %lu bytes\n", size);
	return 0;
}

static void __exit mymem_exit(void)
{
	misc_deregister(&device);
	vfree(memory);
}

module_init(mymem_init);
module_exit(mymem_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Memory of the kernel as a device");
MODULE_AUTHOR("The memwarden authors");
MODULE_VERSION(MEMWARDEN_VERSION);
