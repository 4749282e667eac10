/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * The requests that /dev/cftu takes: copies between user memory and a region of
 * kernel memory, by the CPU or by a DMA engine, each timed.
 *
 * A request is read whole before anything is done, and judged whole: what is
 * wrong with it is EINVAL and changes nothing. Answers are written into the
 * request. Fields named reserved are 0, or the request is EINVAL.
 */
#ifndef _UAPI_MEMWARDEN_CFTU_H
#define _UAPI_MEMWARDEN_CFTU_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Of this header. Another value in CFTU_INFO's answer is another module's. */
#define CFTU_VERSION 2

#define CFTU_NAME_BYTES 32
#define CFTU_REGION_MAX 0x40000000UL
#define CFTU_LENGTH_MAX 0x40000000UL
#define CFTU_BATCH_MAX 65536
#define CFTU_CHANNELS_MAX 64
/* Of both parts of the priority policy's window. */
#define CFTU_QUANTUM_MIN_NS 1000
#define CFTU_QUANTUM_MAX_NS 1000000000

enum cftu_policy_kind {
	CFTU_POLICY_OFF,	/* the CPU copies */
	CFTU_POLICY_EXCLUSIVE,	/* a channel for each CPU */
	CFTU_POLICY_SHARED,	/* any channel for any CPU, the least loaded first */
	CFTU_POLICY_PRIORITY,	/* exclusive, and part of the time is the high ones' alone */
};

/**
 * struct cftu_info - what the module has
 * @version: CFTU_VERSION
 * @channels: DMA channels that it holds
 * @policy: enum cftu_policy_kind
 * @flags: CFTU_CAN_PAUSE, CFTU_COHERENT, CFTU_FOLDED, CFTU_RESERVED, CFTU_COMPARES,
 *	CFTU_STOPS
 * @min_bytes: shorter copies of the kernel and of other modules go by CPU; requests here
 *	don't ask it; all ones: it was measured, and the engine is never faster
 * @poll_bytes: up to here a copy's end is polled for, above it an interrupt awaited
 * @region_bytes: of this file's region, 0: none
 * @quantum_high_ns: of each window, the high channels' part
 * @quantum_low_ns: of each window, everybody's part
 * @high: which channels are high, a bit each
 * @align_bytes: an address or a length that isn't a multiple has its ends copied by CPU
 * @reserved: 0
 * @provider: the first channel's driver
 */
struct cftu_info {
	__u32 version;
	__u32 channels;
	__u32 policy;
	__u32 flags;
	__u64 min_bytes;
	__u64 poll_bytes;
	__u64 region_bytes;
	__u64 quantum_high_ns;
	__u64 quantum_low_ns;
	__u64 high;
	__u32 align_bytes;
	__u32 reserved;
	char provider[CFTU_NAME_BYTES];
};

/* The engine pauses a transfer; without it low copies are admitted in their time. */
#define CFTU_CAN_PAUSE 0x1
/* The engine sees the CPUs' caches. */
#define CFTU_COHERENT 0x2
/* The policy was set with CFTU_FOLD. */
#define CFTU_FOLDED 0x4
/* This file's region is the one that the kernel keeps from boot on. */
#define CFTU_RESERVED 0x8
/*
 * The engine's driver is not known to report errors, and cftu was loaded with compare=1:
 * after each transfer the CPU compares what was copied.
 */
#define CFTU_COMPARES 0x10
/*
 * The engine's driver is known to stop a transfer on terminate. Without this flag a channel
 * that hangs is dead, and the pages of its transfer stay allocated.
 */
#define CFTU_STOPS 0x20

/**
 * struct cftu_policy - which channel a copy takes, from now on
 * @policy: enum cftu_policy_kind
 * @flags: CFTU_FOLD: CPUs may share a channel if there are more CPUs than channels;
 *	else exclusive and priority are EINVAL then
 * @quantum_high_ns: priority: what each window begins with; 0: 30,000
 * @quantum_low_ns: priority: the rest of the window; 0: 60,000
 * @high: priority: the high channels, a bit each; 0: the first
 */
struct cftu_policy {
	__u32 policy;
	__u32 flags;
	__u64 quantum_high_ns;
	__u64 quantum_low_ns;
	__u64 high;
};

#define CFTU_FOLD 0x1

/**
 * struct cftu_region - kernel memory for this file's copies; replaces the file's previous one
 * @bytes: 1 to CFTU_REGION_MAX, zeroed; 0: none
 *
 * It is the region that the kernel reserves at boot (usercopy_region=SIZE), if that is large
 * enough and no file has it; else it is allocated.
 */
struct cftu_region {
	__u64 bytes;
};

/**
 * struct cftu_pin - user memory that stays where it is until it is released
 * @address: its first byte
 * @bytes: 1 to CFTU_LENGTH_MAX; counts against RLIMIT_MEMLOCK
 * @flags: CFTU_WRITABLE: copies may go there
 * @id: out: for @pin of copies, and for CFTU_UNPIN
 */
struct cftu_pin {
	__u64 address;
	__u64 bytes;
	__u32 flags;
	__u32 id;
};

#define CFTU_WRITABLE 0x1

enum cftu_direction {
	CFTU_FROM_USER,
	CFTU_TO_USER,
};

enum cftu_engine {
	CFTU_CPU,	/* copy_from_user(), copy_to_user() */
	CFTU_DMA,	/* the engine, as the policy says; CPU if that is off or fails */
};

/* The channel of a copy that took none. */
#define CFTU_NO_CHANNEL 0xffffffff

/**
 * struct cftu_copy - one copy
 * @address: user memory; with @pin, an address inside what was pinned
 * @offset: where in the region, in bytes
 * @bytes: 1 to CFTU_LENGTH_MAX
 * @direction: enum cftu_direction
 * @engine: enum cftu_engine
 * @flags: CFTU_UNCACHED
 * @pin: id of pinned memory, 0: none, it is pinned for this copy alone
 * @not_copied: out: bytes at the end that were not copied, as copy_from_user()
 *	says it; the request succeeds
 * @engine_bytes: out: what the engine copied of the rest
 * @begin_ns: out: CLOCK_MONOTONIC before
 * @end_ns: out: and after
 * @cpu: out: that began it
 * @channel: out: that had the last part of it, or CFTU_NO_CHANNEL
 */
struct cftu_copy {
	__u64 address;
	__u64 offset;
	__u64 bytes;
	__u32 direction;
	__u32 engine;
	__u32 flags;
	__u32 pin;
	__u64 not_copied;
	__u64 engine_bytes;
	__u64 begin_ns;
	__u64 end_ns;
	__u32 cpu;
	__u32 channel;
};

/*
 * Both sides' cache lines are written back and dropped before the clock is read. User
 * memory that isn't there is EFAULT then: there are no lines of it.
 */
#define CFTU_UNCACHED 0x1

/**
 * struct cftu_batch - many copies in one request
 * @copies: address of @count struct cftu_copy, done in this order
 * @count: 1 to CFTU_BATCH_MAX
 * @reserved: 0
 * @done: out: how many were done; fewer when a signal came (then EINTR) or one was
 *	wrong (then its error)
 */
struct cftu_batch {
	__u64 copies;
	__u32 count;
	__u32 reserved;
	__u64 done;
};

/**
 * struct cftu_channel - what a channel did since the module was loaded
 * @channel: in: which
 * @flags: out: CFTU_HIGH, CFTU_DEAD
 * @name: out: as /sys/class/dma has it
 * @transfers: out: what was submitted and awaited in one go
 * @segments: out: descriptors in them
 * @bytes: out: copied
 * @errors: out: transfers that the engine failed; the CPU did them
 * @timeouts: out: transfers that it did not end in time; the CPU did them
 * @recoveries: out: times that the channel was given back and taken anew
 * @paused_ns: out: time that it was kept from copying by the priority policy
 * @cpus: out: CPUs that submitted, a bit each (those above 63 are left out)
 * @mismatches: out: transfers that the engine's driver said were done, and whose bytes were
 *	others; the CPU did them (CFTU_COMPARES)
 * @held_pages: out: pages that stay allocated until the next boot, as the engine may be at
 *	them yet
 */
struct cftu_channel {
	__u32 channel;
	__u32 flags;
	char name[CFTU_NAME_BYTES];
	__u64 transfers;
	__u64 segments;
	__u64 bytes;
	__u64 errors;
	__u64 timeouts;
	__u64 recoveries;
	__u64 paused_ns;
	__u64 cpus;
	__u64 mismatches;
	__u64 held_pages;
};

#define CFTU_HIGH 0x1
/* It hung, and could not be taken anew: no copy uses it. */
#define CFTU_DEAD 0x2

/**
 * struct cftu_statistics - what all copies did since the module was loaded
 * @copies: asked for, by requests here, by other modules and by the kernel
 * @engine_bytes: by the engine
 * @cpu_bytes: by CPU, for any of the reasons that follow
 * @asked_bytes: the request said CFTU_CPU
 * @off_bytes: the policy is off, or no channel is left
 * @small_bytes: shorter than min_bytes
 * @context_bytes: the caller could not sleep, or has no user memory
 * @unpinned_bytes: user memory that is not there, or may not be held for an engine, or
 *	kernel memory that no engine may touch: what copy_from_user() says is the answer
 * @aligned_bytes: ends, or relative positions, that the engine can't do
 * @refused_bytes: it took no descriptor or no mapping of them
 * @failed_bytes: it failed, did not end in time, or copied other bytes
 * @policies: times that the policy was set
 * @kernel_copies: of @copies those that copy_from_user() and the like asked for, in a
 *	kernel that does (usercopy.dma)
 * @kernel_engine_bytes: of @engine_bytes those of these
 * @mismatches: of all channels
 * @held_pages: of all channels
 */
struct cftu_statistics {
	__u64 copies;
	__u64 engine_bytes;
	__u64 cpu_bytes;
	__u64 asked_bytes;
	__u64 off_bytes;
	__u64 small_bytes;
	__u64 context_bytes;
	__u64 unpinned_bytes;
	__u64 aligned_bytes;
	__u64 refused_bytes;
	__u64 failed_bytes;
	__u64 policies;
	__u64 kernel_copies;
	__u64 kernel_engine_bytes;
	__u64 mismatches;
	__u64 held_pages;
};

/* A type that no driver of Linux 6.12 uses (ioctl-number.rst). */
#define CFTU_IOCTL_TYPE 0xBC

#define CFTU_INFO _IOR(CFTU_IOCTL_TYPE, 1, struct cftu_info)
#define CFTU_POLICY _IOW(CFTU_IOCTL_TYPE, 2, struct cftu_policy)
#define CFTU_REGION _IOW(CFTU_IOCTL_TYPE, 3, struct cftu_region)
#define CFTU_PIN _IOWR(CFTU_IOCTL_TYPE, 4, struct cftu_pin)
#define CFTU_UNPIN _IOW(CFTU_IOCTL_TYPE, 5, __u32)
#define CFTU_COPY _IOWR(CFTU_IOCTL_TYPE, 6, struct cftu_copy)
#define CFTU_BATCH _IOWR(CFTU_IOCTL_TYPE, 7, struct cftu_batch)
#define CFTU_CHANNEL _IOWR(CFTU_IOCTL_TYPE, 8, struct cftu_channel)
#define CFTU_STATISTICS _IOR(CFTU_IOCTL_TYPE, 9, struct cftu_statistics)

#endif /* _UAPI_MEMWARDEN_CFTU_H */
