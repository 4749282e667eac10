// SPDX-License-Identifier: GPL-2.0-only
/*
 * The C half of misc.rs. Both modules of this folder include this file: Kbuild does not allow
 * one object in two modules.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "misc-shim.h"

struct misc_shim {
	struct miscdevice misc;
	const struct misc_shim_operations *operations;
	const void *state;
};

/* misc_open() left the miscdevice there. */
static struct misc_shim *shim_of(struct file *file)
{
	return container_of(file->private_data, struct misc_shim, misc);
}

static int shim_open(struct inode *inode, struct file *file)
{
	/* Threads that share a descriptor take turns at its position, as with a file. */
	file->f_mode |= FMODE_ATOMIC_POS;
	return shim_of(file)->operations->open(shim_of(file)->state);
}

static int shim_release(struct inode *inode, struct file *file)
{
	shim_of(file)->operations->release(shim_of(file)->state);
	return 0;
}

static ssize_t shim_read(struct file *file, char __user *to, size_t count, loff_t *at)
{
	ssize_t done = shim_of(file)->operations->read(shim_of(file)->state, to, count, *at);

	if (done > 0)
		*at += done;
	return done;
}

static ssize_t shim_write(struct file *file, const char __user *from, size_t count, loff_t *at)
{
	ssize_t done = shim_of(file)->operations->write(shim_of(file)->state, from, count, *at);

	if (done > 0)
		*at += done;
	return done;
}

static loff_t shim_llseek(struct file *file, loff_t offset, int whence)
{
	loff_t position = shim_of(file)->operations->seek(shim_of(file)->state, file->f_pos,
							  offset, whence);

	if (position >= 0)
		file->f_pos = position;
	return position;
}

static long shim_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	return shim_of(file)->operations->ioctl(shim_of(file)->state,
						file->f_mode & FMODE_WRITE, command, argument);
}

static int shim_mmap(struct file *file, struct vm_area_struct *area)
{
	return shim_of(file)->operations->map(shim_of(file)->state, area);
}

static const struct file_operations shim_file_operations = {
	.owner = THIS_MODULE,
	.open = shim_open,
	.release = shim_release,
	.read = shim_read,
	.write = shim_write,
	.llseek = shim_llseek,
	.unlocked_ioctl = shim_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = shim_mmap,
};

/* Mode 0600, a minor number of its own. The answer is an ERR_PTR or for misc_shim_deregister(). */
struct misc_shim *misc_shim_register(const char *name,
				     const struct misc_shim_operations *operations,
				     const void *state)
{
	struct misc_shim *shim = kzalloc(sizeof(*shim), GFP_KERNEL);
	int err;

	if (!shim)
		return ERR_PTR(-ENOMEM);
	shim->misc.minor = MISC_DYNAMIC_MINOR;
	shim->misc.name = name;
	shim->misc.mode = 0600;
	shim->misc.fops = &shim_file_operations;
	shim->operations = operations;
	shim->state = state;
	err = misc_register(&shim->misc);
	if (!err)
		return shim;
	kfree(shim);
	return ERR_PTR(err);
}

void misc_shim_deregister(struct misc_shim *shim)
{
	misc_deregister(&shim->misc);
	kfree(shim);
}
