/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A ring of records for each function and CPU.
 */
#ifndef COPYTRACE_RING_H
#define COPYTRACE_RING_H

#include <linux/irq_work.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <asm/local.h>
#include <memwarden/copytrace.h>

/* The devices, in this order. */
enum function {
	FROM_USER,
	TO_USER,
	UNDERSCORE_FROM_USER,
	UNDERSCORE_TO_USER,
	FUNCTIONS,
};

/**
 * struct ring - records of one function's copies that ended on one CPU
 * @recorded: taken so far; the next one's number
 * @dropped: not taken
 * @room: for so many, while copies are recorded; else 0
 * @addresses: the bits of a caller's address that are recorded: all or none
 * @reader: mapped, with the records behind it: what stands there is only read; there while a
 *	file has the ring, and looked at only where @room was seen
 * @records: behind it
 * @quarter: of them; a reader that waits is told when so many are there
 * @started: it has a part in the source; under rings_lock
 * @closed: the RCU state at which it was closed; under rings_lock
 * @filled: that tells
 * @waiting: readers that wait
 */
struct ring {
	local_t recorded;
	local_t dropped;
	unsigned long room;
	unsigned long addresses;
	struct copytrace_reader *reader;
	struct copytrace_record *records;
	unsigned long quarter;
	bool started;
	unsigned long closed;
	struct irq_work filled;
	wait_queue_head_t waiting;
};

extern struct mutex rings_lock;

/* All rings, without memory; 0 or an errno, with its line. */
int rings_init(void);

struct ring *ring_of(enum function function, unsigned int cpu);
unsigned int ring_records(void);
size_t ring_bytes(void);

/*
 * Memory for an empty ring, which a file has from then on; with the callers' addresses or
 * zeros in their place. 0, -EBUSY: another file has it, or -ENOMEM. Under rings_lock.
 */
int ring_claim(struct ring *ring, bool addresses);
/* Its memory is given back. Nothing may be recording. */
void ring_release(struct ring *ring);
/* Copies are recorded, until it is closed; one that is being recorded ends with preemption on. */
void ring_open(struct ring *ring);
void ring_close(struct ring *ring);

static inline bool ring_is_open(const struct ring *ring)
{
	return ring->room;
}

/* Whether there is so much that a reader is woken. */
bool ring_is_worth_reading(const struct ring *ring);

DECLARE_PER_CPU(struct ring[FUNCTIONS], rings);

static __always_inline u64 ring_caller(const struct ring *ring, unsigned long caller)
{
	return caller & ring->addresses;
}

static __always_inline unsigned long ring_used(const struct ring *ring, unsigned long recorded)
{
	return recorded - (unsigned long)READ_ONCE(ring->reader->tail);
}

/**
 * struct ring_slot - a record's place
 * @record: the place
 * @at: the record's number, from 0
 * @used: how many before it are not read yet
 */
struct ring_slot {
	struct copytrace_record *record;
	unsigned long at;
	unsigned long used;
};

/*
 * A place for a copy that ended on this CPU, in whatever context; preemption is off until
 * it is committed. False: it is not recorded here, or the ring is full. All of a traced
 * copy's time goes here, so it is no call.
 */
static __always_inline bool ring_reserve(struct ring *ring, struct ring_slot *slot)
{
	/* Pairs with ring_open(): where there is room there are records, and all else is set. */
	unsigned long room = smp_load_acquire(&ring->room);
	unsigned long at, now;

	if (!room)
		return false;
	at = local_read(&ring->recorded);
	for (;;) {
		slot->used = ring_used(ring, at);
		/* Also what a tail that was never reached makes of it. */
		if (unlikely(slot->used >= room)) {
			local_inc(&ring->dropped);
			return false;
		}
		/* An interrupt that copies may come between. (6.1 has no local_try_cmpxchg.) */
		now = local_cmpxchg(&ring->recorded, at, at + 1);
		if (likely(now == at))
			break;
		at = now;
	}
	slot->at = at;
	slot->record = &ring->records[at & (room - 1)];
	return true;
}

static __always_inline void ring_commit(struct ring *ring, const struct ring_slot *slot)
{
	/* A reader, which may be user space, reads it first. */
	smp_store_release(&slot->record->sequence, slot->at + 1);
	if (unlikely(slot->used + 1 == ring->quarter))
		irq_work_queue(&ring->filled);
}

#endif /* COPYTRACE_RING_H */
