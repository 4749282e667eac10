// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of a ring, in memory of their own.
 */
#include <kunit/test.h>
#include <linux/module.h>
#include <linux/preempt.h>

#include "ring.h"

#define RECORDS 64
#define QUARTER (RECORDS / 4)
/* Many times the length of a ring. */
#define COPIES 20000

/**
 * struct rig - a ring under test, with an interrupt that copies and a reader
 * @ring: the ring
 * @between: an interrupt that copies
 * @told: wake-ups of the reader
 * @taken: records of the interrupt
 */
struct rig {
	struct copytrace_ring ring;
	struct irq_work between;
	atomic_t told;
	unsigned long taken;
};

static bool put(struct copytrace_ring *ring, unsigned long bytes)
{
	struct copytrace_slot slot;
	bool taken;

	preempt_disable();
	taken = copytrace_ring_reserve(ring, &slot);
	if (taken) {
		slot.record->bytes = bytes;
		copytrace_ring_commit(ring, &slot);
	}
	preempt_enable();
	return taken;
}

static void tell(struct irq_work *work)
{
	atomic_inc(&container_of(work, struct rig, ring.filled)->told);
}

static void copy_between(struct irq_work *work)
{
	struct rig *rig = container_of(work, struct rig, between);

	rig->taken += put(&rig->ring, 2);
}

static struct rig *rig_of(struct kunit *test)
{
	struct rig *rig = kunit_kzalloc(test, sizeof(*rig), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, rig);
	rig->ring.reader = kunit_kzalloc(test, sizeof(*rig->ring.reader), GFP_KERNEL);
	rig->ring.records = kunit_kcalloc(test, RECORDS, sizeof(*rig->ring.records), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, rig->ring.reader);
	KUNIT_ASSERT_NOT_NULL(test, rig->ring.records);
	rig->ring.room = RECORDS;
	rig->ring.quarter = QUARTER;
	init_irq_work(&rig->ring.filled, tell);
	init_irq_work(&rig->between, copy_between);
	return rig;
}

static void a_record_has_its_number(struct kunit *test)
{
	struct copytrace_ring *ring = &rig_of(test)->ring;
	int i;

	for (i = 0; i < RECORDS; i++) {
		KUNIT_ASSERT_TRUE(test, put(ring, i));
		KUNIT_EXPECT_EQ(test, ring->records[i].sequence, i + 1);
		KUNIT_EXPECT_EQ(test, ring->records[i].bytes, i);
	}
	irq_work_sync(&ring->filled);
	KUNIT_EXPECT_EQ(test, local_read(&ring->recorded), RECORDS);
}

static void what_a_full_ring_does_not_take_is_counted(struct kunit *test)
{
	struct copytrace_ring *ring = &rig_of(test)->ring;
	int i;

	for (i = 0; i < RECORDS + 10; i++)
		KUNIT_EXPECT_EQ(test, put(ring, i), i < RECORDS);
	/* Room for five. */
	ring->reader->tail = 5;
	for (i = 0; i < 7; i++)
		KUNIT_EXPECT_EQ(test, put(ring, 100 + i), i < 5);
	irq_work_sync(&ring->filled);
	KUNIT_EXPECT_EQ(test, local_read(&ring->recorded), RECORDS + 5);
	KUNIT_EXPECT_EQ(test, local_read(&ring->dropped), 10 + 2);
	KUNIT_EXPECT_EQ(test, ring->records[4].sequence, RECORDS + 5);
	KUNIT_EXPECT_EQ(test, ring->records[4].bytes, 104);
	/* Not read yet. */
	KUNIT_EXPECT_EQ(test, ring->records[5].sequence, 6);
	KUNIT_EXPECT_EQ(test, ring->records[5].bytes, 5);
}

static void a_tail_that_was_never_reached_is_no_room(struct kunit *test)
{
	struct copytrace_ring *ring = &rig_of(test)->ring;

	put(ring, 1);
	ring->reader->tail = 2;
	KUNIT_EXPECT_FALSE(test, put(ring, 2));
	ring->reader->tail = U64_MAX;
	KUNIT_EXPECT_TRUE(test, put(ring, 3));
	ring->reader->tail = S64_MAX;
	KUNIT_EXPECT_FALSE(test, put(ring, 4));
	KUNIT_EXPECT_EQ(test, local_read(&ring->recorded), 2);
	KUNIT_EXPECT_EQ(test, local_read(&ring->dropped), 2);
	KUNIT_EXPECT_EQ(test, ring->records[2].sequence, 0);
}

static void a_ring_that_is_stopped_takes_and_counts_nothing(struct kunit *test)
{
	struct copytrace_ring *ring = &rig_of(test)->ring;

	ring->room = 0;
	KUNIT_EXPECT_FALSE(test, put(ring, 1));
	KUNIT_EXPECT_EQ(test, local_read(&ring->recorded), 0);
	KUNIT_EXPECT_EQ(test, local_read(&ring->dropped), 0);
}

static void an_address_is_told_whole_or_not_at_all(struct kunit *test)
{
	struct copytrace_ring *ring = &rig_of(test)->ring;

	KUNIT_EXPECT_EQ(test, copytrace_ring_caller(ring, 0xffff800012345678), 0);
	ring->addresses = ~0UL;
	KUNIT_EXPECT_EQ(test, copytrace_ring_caller(ring, 0xffff800012345678), 0xffff800012345678);
}

static void a_copy_within_another_leaves_it_its_place(struct kunit *test)
{
	struct copytrace_ring *ring = &rig_of(test)->ring;
	struct copytrace_slot outer;

	preempt_disable();
	KUNIT_EXPECT_TRUE(test, copytrace_ring_reserve(ring, &outer));
	KUNIT_EXPECT_TRUE(test, put(ring, 2));
	/* A reader waits for the first record; the second is complete. */
	KUNIT_EXPECT_EQ(test, ring->records[0].sequence, 0);
	KUNIT_EXPECT_EQ(test, ring->records[1].sequence, 2);
	outer.record->bytes = 1;
	copytrace_ring_commit(ring, &outer);
	preempt_enable();
	KUNIT_EXPECT_EQ(test, ring->records[0].sequence, 1);
	KUNIT_EXPECT_EQ(test, ring->records[0].bytes, 1);
	KUNIT_EXPECT_EQ(test, ring->records[1].bytes, 2);
}

static void interrupts_that_copy_lose_nothing(struct kunit *test)
{
	struct rig *rig = rig_of(test);
	struct copytrace_ring *ring = &rig->ring;
	unsigned long read = 0, ours = 0, theirs = 0, taken = 0;
	int i;

	/* One CPU's ring: the interrupt comes to the CPU that requests it. */
	migrate_disable();
	for (i = 0; i < COPIES; i++) {
		irq_work_queue(&rig->between);
		taken += put(ring, 1);
		for (; ring->records[read % RECORDS].sequence == read + 1; read++) {
			ours += ring->records[read % RECORDS].bytes == 1;
			theirs += ring->records[read % RECORDS].bytes == 2;
		}
		WRITE_ONCE(ring->reader->tail, read);
	}
	irq_work_sync(&rig->between);
	migrate_enable();
	for (; ring->records[read % RECORDS].sequence == read + 1; read++) {
		ours += ring->records[read % RECORDS].bytes == 1;
		theirs += ring->records[read % RECORDS].bytes == 2;
	}
	irq_work_sync(&ring->filled);
	KUNIT_EXPECT_EQ(test, taken, COPIES);
	KUNIT_EXPECT_EQ(test, ours, taken);
	KUNIT_EXPECT_GT(test, theirs, 0);
	KUNIT_EXPECT_EQ(test, theirs, rig->taken);
	KUNIT_EXPECT_EQ(test, read, local_read(&ring->recorded));
	KUNIT_EXPECT_EQ(test, local_read(&ring->dropped), 0);
	kunit_info(test, "%lu copies by interrupts", theirs);
}

static void who_waits_is_told_of_a_quarter_once(struct kunit *test)
{
	struct rig *rig = rig_of(test);
	struct copytrace_ring *ring = &rig->ring;
	int i;

	for (i = 0; i < QUARTER - 1; i++)
		put(ring, i);
	irq_work_sync(&ring->filled);
	KUNIT_EXPECT_EQ(test, atomic_read(&rig->told), 0);
	for (; i < RECORDS; i++) {
		put(ring, i);
		irq_work_sync(&ring->filled);
		KUNIT_EXPECT_EQ(test, atomic_read(&rig->told), 1);
	}
	ring->reader->tail = RECORDS;
	for (i = 0; i < QUARTER; i++)
		put(ring, i);
	irq_work_sync(&ring->filled);
	KUNIT_EXPECT_EQ(test, atomic_read(&rig->told), 2);
}

static struct kunit_case cases[] = {
	KUNIT_CASE(a_record_has_its_number),
	KUNIT_CASE(what_a_full_ring_does_not_take_is_counted),
	KUNIT_CASE(a_tail_that_was_never_reached_is_no_room),
	KUNIT_CASE(a_ring_that_is_stopped_takes_and_counts_nothing),
	KUNIT_CASE(an_address_is_told_whole_or_not_at_all),
	KUNIT_CASE(a_copy_within_another_leaves_it_its_place),
	KUNIT_CASE(interrupts_that_copy_lose_nothing),
	KUNIT_CASE(who_waits_is_told_of_a_quarter_once),
	{}
};

static struct kunit_suite suite = {
	.name = "copytrace",
	.test_cases = cases,
};

kunit_test_suite(suite);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("KUnit tests of copytrace's rings");
MODULE_AUTHOR("The memwarden authors");
