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
enum copytrace_function {
	FROM_USER,
	TO_USER,
	UNDERSCORE_FROM_USER,
	UNDERSCORE_TO_USER,
	FUNCTIONS,
};

/**
 * struct copytrace_ring - records of one function's copies that ended on one CPU
 * @recorded: records taken so far, and the number of the next one
 * @dropped: copies that found the ring full
 * @room: number of records that fit, while copies are recorded; else 0
 * @addresses: mask for callers' addresses: all bits, or none
 * @reader: page that the reader maps and writes its tail to; the records follow it. Allocated
 *	while a file has claimed the ring; valid to a recorder that saw @room
 * @records: the records
 * @quarter: a quarter of the records; at this fill level waiting readers are woken
 * @started: the ring holds a reference on the source; under copytrace_rings_lock
 * @closed: the RCU state at which the ring was closed; under copytrace_rings_lock
 * @function: its function
 * @missed: copies of the function that the source lost while the ring was open, up to the last
 *	close; under copytrace_rings_lock
 * @missed_before: those that the source had lost when the ring was last opened
 * @filled: wakes the readers, from a context where recording may not
 * @waiting: readers in poll()
 */
struct copytrace_ring {
	local_t recorded;
	local_t dropped;
	unsigned long room;
	unsigned long addresses;
	struct copytrace_reader *reader;
	struct copytrace_record *records;
	unsigned long quarter;
	bool started;
	unsigned long closed;
	enum copytrace_function function;
	u64 missed;
	u64 missed_before;
	struct irq_work filled;
	wait_queue_head_t waiting;
};

extern struct mutex copytrace_rings_lock;

/* Sets up all rings, without their memory. Returns 0, or an errno after logging a line. */
int copytrace_rings_init(void);

struct copytrace_ring *copytrace_ring_of(enum copytrace_function function, unsigned int cpu);
unsigned int copytrace_ring_records(void);
size_t copytrace_ring_bytes(void);

/*
 * Allocates an empty ring for a file. With @addresses it records callers' addresses, else zeros.
 * Returns 0, -EBUSY if another file has the ring, or -ENOMEM. Under copytrace_rings_lock.
 */
int copytrace_ring_claim(struct copytrace_ring *ring, bool addresses);
/* Frees the ring's memory. No copy may be recording into it. */
void copytrace_ring_release(struct copytrace_ring *ring);
/* Records copies until it is closed. Recorders run with preemption off: wait for RCU then. */
void copytrace_ring_open(struct copytrace_ring *ring);
void copytrace_ring_close(struct copytrace_ring *ring);

static inline bool copytrace_ring_is_open(const struct copytrace_ring *ring)
{
	return ring->room;
}

/* True if the ring is filled to a quarter, where readers are woken. */
bool copytrace_ring_is_worth_reading(const struct copytrace_ring *ring);

DECLARE_PER_CPU(struct copytrace_ring[FUNCTIONS], copytrace_rings);

static __always_inline u64 copytrace_ring_caller(const struct copytrace_ring *ring,
						 unsigned long caller)
{
	return caller & ring->addresses;
}

static __always_inline unsigned long copytrace_ring_used(const struct copytrace_ring *ring,
							 unsigned long recorded)
{
	return recorded - (unsigned long)READ_ONCE(ring->reader->tail);
}

/**
 * struct copytrace_slot - a record that is reserved and not committed
 * @record: the record
 * @at: its number, from 0
 * @used: records before it that are not read yet
 */
struct copytrace_slot {
	struct copytrace_record *record;
	unsigned long at;
	unsigned long used;
};

/*
 * Reserves a record for a copy that ended on this CPU, in any context. Preemption stays off
 * until it is committed. Returns false if the ring is closed or full. Inlined, since a traced
 * copy spends its extra time here.
 */
static __always_inline bool copytrace_ring_reserve(struct copytrace_ring *ring,
						   struct copytrace_slot *slot)
{
	/* Pairs with copytrace_ring_open(): a ring with room is complete. */
	unsigned long room = smp_load_acquire(&ring->room);
	unsigned long at, now;

	if (!room)
		return false;
	at = local_read(&ring->recorded);
	for (;;) {
		slot->used = copytrace_ring_used(ring, at);
		/* Includes a tail that the reader wrote beyond the head. */
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

static __always_inline void copytrace_ring_commit(struct copytrace_ring *ring,
						  const struct copytrace_slot *slot)
{
	/* A reader, which may be user space, reads it first. */
	smp_store_release(&slot->record->sequence, slot->at + 1);
	if (unlikely(slot->used + 1 == ring->quarter))
		irq_work_queue(&ring->filled);
}

#endif /* COPYTRACE_RING_H */
