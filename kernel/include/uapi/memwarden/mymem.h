/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * The requests that /dev/mymem and /dev/mymem_rust take, besides read, write,
 * llseek and mmap. Both take the same. The answer is written into the request: one
 * that lies in memory that can't be written to is EFAULT after the word was changed.
 */
#ifndef _UAPI_MEMWARDEN_MYMEM_H
#define _UAPI_MEMWARDEN_MYMEM_H

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * struct mymem_fetch_add - add to a 64-bit word of the device's memory
 * @offset: where the word is, in bytes; a multiple of 8, the word inside the device
 * @operand: in: what to add (modulo 2^64); out: the word's value before
 */
struct mymem_fetch_add {
	__u64 offset;
	__u64 operand;
};

/**
 * struct mymem_compare_exchange - replace a 64-bit word if it has a value
 * @offset: where the word is, in bytes; a multiple of 8, the word inside the device
 * @expected: in: the value that it must have; out: the value that it had. The
 *	word was replaced if these are the same.
 * @desired: what to replace it with
 */
struct mymem_compare_exchange {
	__u64 offset;
	__u64 expected;
	__u64 desired;
};

/* A type that no driver of Linux 6.12 uses (ioctl-number.rst). */
#define MYMEM_IOCTL_TYPE 0xBB

#define MYMEM_FETCH_ADD _IOWR(MYMEM_IOCTL_TYPE, 1, struct mymem_fetch_add)
#define MYMEM_COMPARE_EXCHANGE _IOWR(MYMEM_IOCTL_TYPE, 2, struct mymem_compare_exchange)

#endif /* _UAPI_MEMWARDEN_MYMEM_H */
