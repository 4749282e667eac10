/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cftu's interface for other modules: copies between user and kernel memory by a
 * DMA engine, and the policy that chooses the channel of a copy. A caller keeps
 * cftu loaded.
 */
#ifndef CFTU_H
#define CFTU_H

#include <linux/compiler_types.h>
#include <linux/types.h>
#include <memwarden/cftu.h>

struct cftu_pinned;

/**
 * cftu_start() - choose the policy, from the next transfer on
 * @policy: as CFTU_POLICY takes it
 *
 * May sleep, until the running transfers have ended.
 *
 * Return: 0, -EINVAL for a policy that struct cftu_policy does not allow, or the error of the
 * priority policy's thread if it did not start: the policy is off then.
 */
int cftu_start(const struct cftu_policy *policy);

/**
 * cftu_stop() - let the CPU copy, from the next transfer on
 *
 * May sleep, until the running transfers have ended.
 */
void cftu_stop(void);

/**
 * cftu_copy_from_user() - copy_from_user(), by the engine if it can
 * @to: kernel memory, @bytes long
 * @from: memory of the calling task
 * @bytes: how many, any number
 *
 * The result is copy_from_user()'s in all cases, even if the engine fails, unless the task has
 * a fatal signal: then the copy ends, and its rest counts as not copied. It may be called
 * wherever copy_from_user() may; the CPU copies if the caller can't sleep, and memory outside
 * the linear map (vmalloc()ed, on the stack).
 *
 * Return: the bytes, at the end, that could not be copied; they are zeroed.
 */
unsigned long cftu_copy_from_user(void *to, const void __user *from, unsigned long bytes);

/**
 * cftu_copy_to_user() - copy_to_user(), by the engine if it can
 * @to: memory of the calling task
 * @from: kernel memory, @bytes long
 * @bytes: how many, any number
 *
 * As cftu_copy_from_user().
 *
 * Return: the bytes, at the end, that could not be copied.
 */
unsigned long cftu_copy_to_user(void __user *to, const void *from, unsigned long bytes);

/**
 * cftu_pin() - pin user memory
 * @address: memory of the calling task
 * @bytes: number of bytes
 * @writable: copies may write to it
 *
 * It counts against the task's RLIMIT_MEMLOCK. May sleep.
 *
 * Copies find what the task sees there, as long as it keeps the mapping. For that, private
 * memory that was never written gets pages of its own, also without @writable, and also where
 * it maps a file: later changes of the file don't show any more. Before Linux 6.2 private huge
 * pages (hugetlb) that are read-only can't be pinned. The memory of shared mappings stays the
 * file's; without @writable they may be read-only.
 *
 * Return: the pinned memory, for cftu_unpin(), or an ERR_PTR(): -EINVAL for a range that is
 * empty, wraps or is longer than CFTU_LENGTH_MAX, -ENOMEM above the limit, -EFAULT if the
 * memory does not exist, or can't be pinned.
 */
struct cftu_pinned *cftu_pin(unsigned long address, size_t bytes, bool writable);

/**
 * cftu_unpin() - release memory that cftu_pin() pinned
 * @pinned: the memory; no copy may be using it
 */
void cftu_unpin(struct cftu_pinned *pinned);

/**
 * cftu_copy_from_pinned() - copy out of pinned user memory
 * @to: kernel memory, @bytes long
 * @from: pinned memory, of any task
 * @offset: offset in @from
 * @bytes: number of bytes
 *
 * May sleep. The CPU copies memory outside the linear map.
 *
 * Return: 0, -EINVAL for a range that is not inside, or -EINTR if the task has a fatal signal:
 * then not all is copied.
 */
int cftu_copy_from_pinned(void *to, struct cftu_pinned *from, size_t offset, size_t bytes);

/**
 * cftu_copy_to_pinned() - copy into pinned user memory
 * @to: pinned memory, of any task
 * @offset: offset in @to
 * @from: kernel memory, @bytes long
 * @bytes: number of bytes
 *
 * May sleep.
 *
 * Return: as cftu_copy_from_pinned(), and -EPERM for memory that was not pinned to be written
 * to.
 */
int cftu_copy_to_pinned(struct cftu_pinned *to, size_t offset, const void *from, size_t bytes);

#endif /* CFTU_H */
