// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of a device's edge cases, through its exported functions. Compiled here
 * for mymem and in ../mymem-rust for mymem_rust, which must behave the same.
 */
#include <kunit/test.h>
#include <linux/limits.h>
#include <linux/module.h>
#include <linux/sizes.h>

#ifndef DEVICE
#include "mymem.h"
#define DEVICE "mymem"
#define device_read mymem_read
#define device_write mymem_write
#define device_fetch_add mymem_fetch_add
#endif

#define SIZE SZ_512K

/* The tests expect a device with default parameters. */
static int needs_defaults(struct kunit *test)
{
	u8 two[2];

	if (device_read(two, 1, SIZE - 1) != 1 || device_read(two, 1, SIZE) != 0 ||
	    device_read(two, 2, SIZE - 1) != -EINVAL)
		kunit_skip(test, "the device was loaded with parameters");
	return 0;
}

static void what_is_written_is_read(struct kunit *test)
{
	u8 in[64], out[64];
	loff_t at;
	int i;

	for (i = 0; i < sizeof(in); i++)
		in[i] = i * 7 + 1;
	for (at = 0; at <= SIZE - (loff_t)sizeof(in); at += SIZE / 8 - 8) {
		KUNIT_EXPECT_EQ(test, device_write(in, sizeof(in), at), sizeof(in));
		KUNIT_EXPECT_EQ(test, device_read(out, sizeof(out), at), sizeof(out));
		KUNIT_EXPECT_MEMEQ(test, in, out, sizeof(in));
	}
}

static void a_write_leaves_its_neighbours(struct kunit *test)
{
	const u8 zero[16] = {}, one[5] = { 1, 2, 3, 4, 5 };
	u8 out[16];

	KUNIT_EXPECT_EQ(test, device_write(zero, sizeof(zero), 4096 - 8), sizeof(zero));
	KUNIT_EXPECT_EQ(test, device_write(one, sizeof(one), 4096 - 3), sizeof(one));
	KUNIT_EXPECT_EQ(test, device_read(out, sizeof(out), 4096 - 8), sizeof(out));
	KUNIT_EXPECT_MEMEQ(test, out, zero, 5);
	KUNIT_EXPECT_MEMEQ(test, out + 5, one, 5);
	KUNIT_EXPECT_MEMEQ(test, out + 10, zero, 6);
}

static void the_end_is_the_end(struct kunit *test)
{
	u8 bytes[8] = {};

	KUNIT_EXPECT_EQ(test, device_read(bytes, 8, SIZE - 8), 8);
	KUNIT_EXPECT_EQ(test, device_write(bytes, 8, SIZE - 8), 8);
	KUNIT_EXPECT_EQ(test, device_read(bytes, 8, SIZE), 0);
	KUNIT_EXPECT_EQ(test, device_write(bytes, 8, SIZE), -ENOSPC);
}

static void a_range_that_is_not_inside_is_refused(struct kunit *test)
{
	static const struct {
		loff_t at;
		size_t count;
	} outside[] = {
		{ SIZE - 8, 9 }, { 0, SIZE + 1 }, { SIZE + 1, 1 }, { -1, 1 }, { LLONG_MIN, 1 },
		{ LLONG_MAX, 1 }, { 8, SIZE_MAX }, { 8, SIZE_MAX - 7 }, { SIZE - 1, SIZE_MAX },
	};
	u8 bytes[16];
	int i;

	for (i = 0; i < ARRAY_SIZE(outside); i++) {
		KUNIT_EXPECT_EQ(test, device_read(bytes, outside[i].count, outside[i].at), -EINVAL);
		KUNIT_EXPECT_EQ(test, device_write(bytes, outside[i].count, outside[i].at),
				-EINVAL);
	}
}

static void nothing_is_moved_for_no_bytes(struct kunit *test)
{
	u8 byte;

	KUNIT_EXPECT_EQ(test, device_read(&byte, 0, 0), 0);
	KUNIT_EXPECT_EQ(test, device_write(&byte, 0, SIZE), 0);
	KUNIT_EXPECT_EQ(test, device_read(&byte, 0, SIZE + 1), -EINVAL);
}

static void a_word_is_added_to(struct kunit *test)
{
	const u64 most = U64_MAX;
	u64 operand = 2, word;

	KUNIT_EXPECT_EQ(test, device_write(&most, 8, SIZE - 8), 8);
	KUNIT_EXPECT_EQ(test, device_fetch_add(SIZE - 8, &operand), 0);
	KUNIT_EXPECT_EQ(test, operand, U64_MAX);
	KUNIT_EXPECT_EQ(test, device_read(&word, 8, SIZE - 8), 8);
	KUNIT_EXPECT_EQ(test, word, 1);
}

static void a_word_that_is_not_there_is_refused(struct kunit *test)
{
	static const loff_t wrong[] = {
		1, 4, SIZE - 4, SIZE, SIZE + 8, -8, LLONG_MIN, LLONG_MAX - 7,
	};
	u64 operand = 5;
	int i;

	for (i = 0; i < ARRAY_SIZE(wrong); i++)
		KUNIT_EXPECT_EQ(test, device_fetch_add(wrong[i], &operand), -EINVAL);
	KUNIT_EXPECT_EQ(test, operand, 5);
}

static struct kunit_case cases[] = {
	KUNIT_CASE(what_is_written_is_read),
	KUNIT_CASE(a_write_leaves_its_neighbours),
	KUNIT_CASE(the_end_is_the_end),
	KUNIT_CASE(a_range_that_is_not_inside_is_refused),
	KUNIT_CASE(nothing_is_moved_for_no_bytes),
	KUNIT_CASE(a_word_is_added_to),
	KUNIT_CASE(a_word_that_is_not_there_is_refused),
	{}
};

static struct kunit_suite suite = {
	.name = DEVICE,
	.init = needs_defaults,
	.test_cases = cases,
};

kunit_test_suite(suite);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("KUnit tests of " DEVICE);
MODULE_AUTHOR("The memwarden authors");
