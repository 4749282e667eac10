/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * Who copies how much between user and kernel memory: the devices /dev/copytrace/
 * from_user, to_user, __from_user and __to_user, one for each function, and the rings
 * that they give out, one for each CPU.
 *
 * A file claims the ring of one CPU, maps it and starts it. The ring is a page that
 * begins with a struct copytrace_reader, and after it records. Record N, counted from 0,
 * is in slot N % records, and is whole once its sequence is N + 1 (read that first, with
 * acquire). What was read is given back by writing the reader's tail. A full ring takes
 * nothing more: what it does not take is counted.
 */
#ifndef _UAPI_MEMWARDEN_COPYTRACE_H
#define _UAPI_MEMWARDEN_COPYTRACE_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Of this header. Another value in COPYTRACE_INFO's answer is another module's. */
#define COPYTRACE_VERSION 1

/* Which copies are seen. */
enum copytrace_source {
	/* All of the four functions and of iov_iters, inlined ones too. */
	COPYTRACE_HOOKS,
	/*
	 * Calls of what copies for them, by probes: copies that are inlined down to the
	 * instructions are not seen.
	 */
	COPYTRACE_PROBES,
};

/**
 * struct copytrace_info - what the module has
 * @version: COPYTRACE_VERSION
 * @source: enum copytrace_source
 * @cpus: CPUs that may be claimed are 0 to @cpus - 1
 * @records: of each ring
 * @ring_bytes: of each ring's mapping; the records begin @records_at
 * @records_at: bytes into it
 * @flags: COPYTRACE_MERGED, COPYTRACE_NO_ADDRESSES
 * @ticks_hz: how often a second the counter ticks that the records' times are of
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
 * The source cannot tell the __ forms, and those for callers that must not sleep, from the
 * others: from_user and to_user record all, __from_user and __to_user none.
 */
#define COPYTRACE_MERGED 0x1
/* The calling task lacks CAP_PERFMON: callers in a ring that it claims are 0. */
#define COPYTRACE_NO_ADDRESSES 0x2

/**
 * struct copytrace_reader - what the reader writes
 * @tail: records before this one are read
 */
struct copytrace_reader {
	__u64 tail;
};

/**
 * struct copytrace_record - one copy that has ended
 * @sequence: its number in this ring, from 1
 * @before: the CPUs' counter before: CNTVCT_EL0 or the TSC, which all CPUs share
 * @after: and after
 * @caller: address in the kernel to which the function returned; 0 in a ring that was
 *	claimed without CAP_PERFMON
 * @bytes: asked for
 * @left: of them not copied
 * @by_engine: of them copied by a DMA engine
 * @cpu: that began it; it ended on the ring's
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
 * struct copytrace_counts - of the claimed ring, since it was claimed
 * @recorded: taken
 * @dropped: not taken, for the ring was full
 * @missed: probes: on all CPUs, calls that found no room to be followed; no ring has them
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
 * The CPU whose ring this file has from now on, empty; EBUSY: another has it; ENOMEM: there is
 * no memory for it. Its memory is given back when the file is closed and nothing maps it.
 */
#define COPYTRACE_CLAIM _IOW(COPYTRACE_IOCTL_TYPE, 2, __u32)
/* From now on copies that end on that CPU are recorded; EBUSY: another module traces. */
#define COPYTRACE_START _IO(COPYTRACE_IOCTL_TYPE, 3)
/* None are, and none is being written: what the ring has is all. May take a while. */
#define COPYTRACE_STOP _IO(COPYTRACE_IOCTL_TYPE, 4)
#define COPYTRACE_COUNTS _IOR(COPYTRACE_IOCTL_TYPE, 5, struct copytrace_counts)
/*
 * None that end from now on are; some may be being written yet. It takes no time, so
 * that many rings end together before each is stopped. START opens it again.
 */
#define COPYTRACE_CLOSE _IO(COPYTRACE_IOCTL_TYPE, 6)

#endif /* _UAPI_MEMWARDEN_COPYTRACE_H */
