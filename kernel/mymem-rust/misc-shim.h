/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A misc device whose operations are functions of Rust (misc.rs). Linux 6.12
 * has no abstraction of one.
 */
#ifndef MISC_SHIM_H
#define MISC_SHIM_H

#include <linux/fs.h>

struct misc_shim;

/*
 * Each operation gets the registered state, and checks positions itself: read and
 * write return the number of bytes, and the shim advances the position; seek
 * returns the new position.
 */
struct misc_shim_operations {
	int (*open)(const void *state);
	void (*release)(const void *state);
	ssize_t (*read)(const void *state, char __user *to, size_t count, loff_t at);
	ssize_t (*write)(const void *state, const char __user *from, size_t count, loff_t at);
	loff_t (*seek)(const void *state, loff_t position, loff_t offset, int whence);
	long (*ioctl)(const void *state, bool writable, unsigned int command,
		      unsigned long argument);
	int (*map)(const void *state, struct vm_area_struct *area);
};

struct misc_shim *misc_shim_register(const char *name,
				     const struct misc_shim_operations *operations,
				     const void *state);
void misc_shim_deregister(struct misc_shim *shim);

#endif /* MISC_SHIM_H */
