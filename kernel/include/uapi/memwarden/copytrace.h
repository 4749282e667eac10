/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * A trace of the copies between user and kernel memory: the devices /dev/copytrace/
 * from_user, to_user, __from_user and __to_user, one for each function, each with a ring
 * for each CPU.
 *
 * A file claims the ring of one CPU, maps it and starts it. The ring is a page that
 * begins with a struct copytrace_reader, followed by the records. Record N, counted from
 * 0, is in slot N % records, and is complete when its sequence is N + 1 (read that first,
 * with acquire). The reader releases the records that it has read by writing the tail. A
 * full ring drops further records and counts them.
 */
#ifndef _UAPI_MEMWARDEN_COPYTRACE_H
#define _UAPI_MEMWARDEN_COPYTRACE_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* This header's version. A module that reports another one in COPYTRACE_INFO does not match it. */
#define COPYTRACE_VERSION 1

/* The traced copies. */
enum copytrace_source {
	/* All copies of the four functions and of iov_iters, including inlined ones. */
	COPYTRACE_HOOKS,
	/*
	 * Calls of the out-of-line functions that copy for them, by probes: fully inlined
	 * copies are not traced.
	 */
	COPYTRACE_PROBES,
};

/**
 * struct copytrace_info - the module's properties
 * @version: COPYTRACE_VERSION
 * @source: enum copytrace_source
 * @cpus: CPUs that may be claimed are 0 to @cpus - 1
 * @records: number of records of each ring
 * @ring_bytes: size of each ring's mapping
 * @records_at: offset of the records in the mapping
 * @flags: COPYTRACE_MERGED, COPYTRACE_NO_ADDRESSES
 * @ticks_hz: frequency of the counter that the records' times are read from
 */
struct copytrace_info {
	__u32 version;
	__u32 source;
	__u32 cpus;
	__u32 records;
	__u64 ring_bytes;
	__u32 records_at;
	__u32 flags;
	__u64 ticks_hz;
};

/*
 * The source cannot distinguish the __ forms, and those for callers that must not sleep, from
 * the others: from_user and to_user record all copies, __from_user and __to_user none.
 */
#define COPYTRACE_MERGED 0x1
/* The calling task lacks CAP_PERFMON: callers in a ring that it claims are 0. */
#define COPYTRACE_NO_ADDRESSES 0x2

/**
 * struct copytrace_reader - the part that the reader writes
 * @tail: number of the first record that the reader has not read
 */
struct copytrace_reader {
	__u64 tail;
};

/**
 * struct copytrace_record - one completed copy
 * @sequence: its number in this ring, from 1
 * @before: the counter that all CPUs share (CNTVCT_EL0, the TSC), before the copy
 * @after: the same after the copy
 * @caller: address in the kernel to which the function returned; 0 in a ring that was
 *	claimed without CAP_PERFMON
 * @bytes: bytes requested
 * @left: bytes not copied
 * @by_engine: bytes copied by a DMA engine
 * @cpu: the CPU that began it; it ended on the ring's CPU
 * @reserved: 0
 */
struct copytrace_record {
	__u64 sequence;
	__u64 before;
	__u64 after;
	__u64 caller;
	__u64 bytes;
	__u64 left;
	__u64 by_engine;
	__u32 cpu;
	__u32 reserved;
};

/**
 * struct copytrace_counts - counts of the claimed ring, since it was claimed
 * @recorded: copies recorded
 * @dropped: copies not recorded, because the ring was full
 * @missed: probes: calls of the function, on all CPUs, that had no free probe instance while
 *	this ring was recording; no ring has them
 */
struct copytrace_counts {
	__u64 recorded;
	__u64 dropped;
	__u64 missed;
};

/* A type that no driver of Linux 6.12 uses (ioctl-number.rst). */
#define COPYTRACE_IOCTL_TYPE 0xBE

#define COPYTRACE_INFO _IOR(COPYTRACE_IOCTL_TYPE, 1, struct copytrace_info)
/*
 * Claims the ring of a CPU for this file, empty; EBUSY: another file has it; ENOMEM: there is
 * no memory for it. Its memory is freed when the file is closed and unmapped.
 */
#define COPYTRACE_CLAIM _IOW(COPYTRACE_IOCTL_TYPE, 2, __u32)
/* Starts recording copies that end on that CPU; EBUSY: another module traces. */
#define COPYTRACE_START _IO(COPYTRACE_IOCTL_TYPE, 3)
/* Stops recording, and waits until no record is being written. May take a while. */
#define COPYTRACE_STOP _IO(COPYTRACE_IOCTL_TYPE, 4)
#define COPYTRACE_COUNTS _IOR(COPYTRACE_IOCTL_TYPE, 5, struct copytrace_counts)
/*
 * Stops recording without waiting: records may still be written. It is fast, so that many
 * rings end at almost the same time before each is stopped. START opens the ring again.
 */
#define COPYTRACE_CLOSE _IO(COPYTRACE_IOCTL_TYPE, 6)

#endif /* _UAPI_MEMWARDEN_COPYTRACE_H */
