/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * The requests of /dev/cftu: copies between user memory and a region of kernel
 * memory, by the CPU or by a DMA engine, each timed.
 *
 * A request is read and checked as a whole first: an invalid one fails with EINVAL
 * and changes nothing. Results are written into the request. Fields named reserved
 * must be 0, or the request fails with EINVAL.
 */
#ifndef _UAPI_MEMWARDEN_CFTU_H
#define _UAPI_MEMWARDEN_CFTU_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* This header's version. A module that reports another one in CFTU_INFO does not match it. */
#define CFTU_VERSION 2

#define CFTU_NAME_BYTES 32
#define CFTU_REGION_MAX 0x40000000UL
#define CFTU_LENGTH_MAX 0x40000000UL
#define CFTU_BATCH_MAX 65536
#define CFTU_CHANNELS_MAX 64
/* Limits of both parts of the priority policy's window. */
#define CFTU_QUANTUM_MIN_NS 1000
#define CFTU_QUANTUM_MAX_NS 1000000000

enum cftu_policy_kind {
	CFTU_POLICY_OFF,	/* the CPU copies */
	CFTU_POLICY_EXCLUSIVE,	/* a channel for each CPU */
	CFTU_POLICY_SHARED,	/* any channel for any CPU, the least loaded first */
	CFTU_POLICY_PRIORITY,	/* exclusive, with a part of each window for high channels only */
};

/**
 * struct cftu_info - the module's properties
 * @version: CFTU_VERSION
 * @channels: DMA channels that it holds
 * @policy: enum cftu_policy_kind
 * @flags: CFTU_CAN_PAUSE, CFTU_COHERENT, CFTU_FOLDED, CFTU_RESERVED, CFTU_COMPARES,
 *	CFTU_STOPS
 * @min_bytes: the CPU makes shorter copies of the kernel and of other modules; requests to
 *	this device ignore it; all ones: it was measured, and the engine is never faster
 * @poll_bytes: the end of a copy up to this size is polled for; longer ones await an interrupt
 * @region_bytes: size of this file's region, 0: none
 * @quantum_high_ns: the part of each window for the high channels only
 * @quantum_low_ns: the part of each window for all channels
 * @high: the high channels, a bit each
 * @align_bytes: the CPU copies the ends of a range that isn't aligned to this
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

/* The engine can pause a transfer; without this flag a low copy begins only if it will fit. */
#define CFTU_CAN_PAUSE 0x1
/* The engine snoops the CPUs' caches. */
#define CFTU_COHERENT 0x2
/* The policy was set with CFTU_FOLD. */
#define CFTU_FOLDED 0x4
/* This file's region is the one that the kernel reserves at boot. */
#define CFTU_RESERVED 0x8
/*
 * The engine's driver is not known to report errors, and cftu was loaded with compare=1:
 * after each transfer the CPU compares both sides.
 */
#define CFTU_COMPARES 0x10
/*
 * The engine's driver is known to stop a transfer on terminate. Without this flag a channel
 * that hangs is dead, and the pages of its transfer stay allocated.
 */
#define CFTU_STOPS 0x20

/**
 * struct cftu_policy - the choice of channels, from the next transfer on
 * @policy: enum cftu_policy_kind
 * @flags: CFTU_FOLD: CPUs share channels if there are more CPUs than channels; without it
 *	exclusive and priority then fail with EINVAL
 * @quantum_high_ns: priority: the first part of each window; 0: 30,000
 * @quantum_low_ns: priority: the second part of each window; 0: 60,000
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
 * struct cftu_pin - user memory that stays pinned until it is released
 * @address: its first byte
 * @bytes: 1 to CFTU_LENGTH_MAX; counts against RLIMIT_MEMLOCK
 * @flags: CFTU_WRITABLE: copies may write to it
 * @id: out: for @pin of copies, and for CFTU_UNPIN
 *
 * Private memory gets pages of its own first, and then no longer follows a file that it maps.
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
	CFTU_DMA,	/* the engine, by the policy; else, or if it fails, the CPU */
};

/* The channel of a copy that used none. */
#define CFTU_NO_CHANNEL 0xffffffff

/**
 * struct cftu_copy - one copy
 * @address: user memory; with @pin, an address in the pinned memory
 * @offset: offset in the region, in bytes
 * @bytes: 1 to CFTU_LENGTH_MAX
 * @direction: enum cftu_direction
 * @engine: enum cftu_engine
 * @flags: CFTU_UNCACHED
 * @pin: id of pinned memory; 0: the memory is pinned for this copy only
 * @not_copied: out: bytes at the end that were not copied, as copy_from_user()
 *	returns them; the request succeeds. A fatal signal ends the copy, too;
 *	with @pin the request then fails with EINTR
 * @engine_bytes: out: bytes that the engine copied
 * @begin_ns: out: CLOCK_MONOTONIC before the copy
 * @end_ns: out: CLOCK_MONOTONIC after it
 * @cpu: out: the CPU that began it
 * @channel: out: the channel of its last part, or CFTU_NO_CHANNEL
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
 * Both sides' cache lines are written back and invalidated before the clock is read. The
 * request then fails with EFAULT if the user memory is not present: it has no lines.
 */
#define CFTU_UNCACHED 0x1

/**
 * struct cftu_batch - many copies in one request
 * @copies: address of @count struct cftu_copy, done in this order
 * @count: 1 to CFTU_BATCH_MAX
 * @reserved: 0
 * @done: out: number of copies done; fewer than @count after a signal (EINTR) or an
 *	invalid copy (its error)
 */
struct cftu_batch {
	__u64 copies;
	__u32 count;
	__u32 reserved;
	__u64 done;
};

/**
 * struct cftu_channel - a channel's counts since the module was loaded
 * @channel: in: its index
 * @flags: out: CFTU_HIGH, CFTU_DEAD
 * @name: out: its name in /sys/class/dma
 * @transfers: out: transfers, each submitted and awaited as a whole
 * @segments: out: descriptors in them
 * @bytes: out: bytes copied
 * @errors: out: transfers that failed; the CPU copied their bytes
 * @timeouts: out: transfers that did not end in time; the CPU copied their bytes
 * @recoveries: out: how often the channel was released and requested again
 * @paused_ns: out: time for which the priority policy held it back
 * @cpus: out: CPUs that submitted, a bit each (without those above 63)
 * @mismatches: out: transfers that the driver reported as done, with wrong bytes; the CPU
 *	copied them again (CFTU_COMPARES)
 * @held_pages: out: pages that stay allocated until the next boot, since the engine may
 *	still access them
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
/* It hung, and could not be requested again: no copy uses it. */
#define CFTU_DEAD 0x2

/**
 * struct cftu_statistics - counts of all copies since the module was loaded
 * @copies: copies for requests to this device, for other modules and for the kernel
 * @engine_bytes: bytes that the engine copied
 * @cpu_bytes: bytes that the CPU copied, for any of the following reasons
 * @asked_bytes: the request had CFTU_CPU
 * @off_bytes: the policy is off, or no channel is available
 * @small_bytes: the copy is shorter than min_bytes
 * @context_bytes: the caller cannot sleep, or has no user memory
 * @unpinned_bytes: the user memory is not present or cannot be held for an engine, or the
 *	engine may not access the kernel memory; the result is copy_from_user()'s
 * @aligned_bytes: ends that are not aligned, or two sides that are aligned differently
 * @refused_bytes: the engine took no descriptor or no mapping of them
 * @failed_bytes: the engine failed, did not end in time, or copied wrong bytes
 * @policies: how often the policy was set
 * @kernel_copies: those of @copies that copy_from_user() and similar functions of a patched
 *	kernel requested (usercopy.dma)
 * @kernel_engine_bytes: the part of @engine_bytes in @kernel_copies
 * @mismatches: sum over all channels
 * @held_pages: sum over all channels
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
