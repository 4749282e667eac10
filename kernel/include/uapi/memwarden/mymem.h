/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * The requests of /dev/mymem and /dev/mymem_rust, besides read, write, llseek and
 * mmap. Both devices have the same. The result is written into the request: if that
 * memory isn't writable, the request fails with EFAULT after the word was changed.
 */
#ifndef _UAPI_MEMWARDEN_MYMEM_H
#define _UAPI_MEMWARDEN_MYMEM_H

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * struct mymem_fetch_add - add to a 64-bit word of the device's memory
 * @offset: offset of the word in bytes; a multiple of 8, inside the device
 * @operand: in: the value to add (modulo 2^64); out: the word's previous value
 */
struct mymem_fetch_add {
	__u64 offset;
	__u64 operand;
};

/**
 * struct mymem_compare_exchange - replace a 64-bit word if it has the expected value
 * @offset: offset of the word in bytes; a multiple of 8, inside the device
 * @expected: in: the expected value; out: the word's previous value. The word was
 *	replaced if these are equal.
 * @desired: the new value
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
