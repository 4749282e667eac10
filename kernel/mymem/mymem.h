/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What mymem offers to other modules: its memory, under the same rules as for
 * user space. All three may sleep. A caller keeps mymem loaded.
 */
#ifndef MYMEM_H
#define MYMEM_H

#include <linux/types.h>

/**
 * mymem_read() - copy from the device's memory
 * @to: where to, @count bytes of kernel memory
 * @count: how many bytes
 * @pos: from which offset
 *
 * Return: the bytes copied, fewer than @count only where strict=0; 0 at the
 * end; -EINVAL for a range that isn't inside; -EINTR when the caller is killed.
 */
ssize_t mymem_read(void *to, size_t count, loff_t pos);

/**
 * mymem_write() - copy to the device's memory
 * @from: where from, @count bytes of kernel memory
 * @count: how many bytes
 * @pos: to which offset
 *
 * Return: as mymem_read(), but -ENOSPC at the end.
 */
ssize_t mymem_write(const void *from, size_t count, loff_t pos);

/**
 * mymem_fetch_add() - add to a 64-bit word, as MYMEM_FETCH_ADD does
 * @offset: of the word, a multiple of 8
 * @operand: what to add; afterwards what the word was before
 *
 * Return: 0, -EINVAL, or -EINTR when the caller is killed.
 */
int mymem_fetch_add(loff_t offset, u64 *operand);

#endif /* MYMEM_H */
