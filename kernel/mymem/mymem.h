/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * mymem's interface for other modules: access to its memory by the same rules as user space.
 * All three functions may sleep. A caller keeps mymem loaded.
 */
#ifndef MYMEM_H
#define MYMEM_H

#include <linux/types.h>

/**
 * mymem_read() - copy from the device's memory
 * @to: kernel memory, @count bytes
 * @count: number of bytes
 * @pos: offset in the device's memory
 *
 * Return: the bytes copied, fewer than @count only with strict=0; 0 at the end;
 * -EINVAL for a range that is not inside; -EINTR if the caller is killed.
 */
ssize_t mymem_read(void *to, size_t count, loff_t pos);

/**
 * mymem_write() - copy to the device's memory
 * @from: kernel memory, @count bytes
 * @count: number of bytes
 * @pos: offset in the device's memory
 *
 * Return: as mymem_read(), but -ENOSPC at the end.
 */
ssize_t mymem_write(const void *from, size_t count, loff_t pos);

/**
 * mymem_fetch_add() - add to a 64-bit word, as MYMEM_FETCH_ADD does
 * @offset: offset of the word, a multiple of 8
 * @operand: in: the value to add; out: the word's previous value
 *
 * Return: 0, -EINVAL, or -EINTR if the caller is killed.
 */
int mymem_fetch_add(loff_t offset, u64 *operand);

#endif /* MYMEM_H */
