// SPDX-License-Identifier: GPL-2.0-only OR MIT
#include "policy.h"
#include "split.h"

/* Parts are in 1/128; the counter that counted less gets at least two. */
#define PART_SHIFT 7
#define LEAST_PART 2

static u64 no_more_than(u64 value, u64 limit)
{
	return value < limit ? value : limit;
}

/* @part / @whole in 1/128, rounded to the nearest; @part is half of @whole at most. */
static u64 part_of(u64 part, u64 whole)
{
	u64 parts = 0;
	int bit;

	/* 32-bit kernels have no 64-bit division. */
	for (bit = 0; bit < PART_SHIFT; bit++) {
		part <<= 1;
		parts <<= 1;
		if (part >= whole) {
			part -= whole;
			parts++;
		}
	}
	return parts + (part << 1 >= whole);
}

/**
 * mw_split_left() - split the remaining budget among its counters
 * @split: state of these counters; zero before the first call
 * @counted: events of each counter since the last call
 * @left: remaining events of their sum, at least 1; MW_UNLIMITED is not split
 * @share: set to the number of events after which each counter interrupts
 *
 * The shares add up to one more than @left.
 */
void mw_split_left(struct mw_split *split, const u64 counted[MW_SPLIT],
		   u64 left, u64 share[MW_SPLIT])
{
	u64 *recent = split->recent, sum, spare, part;
	int i, lesser;

	for (i = 0; i < MW_SPLIT; i++)
		recent[i] = (recent[i] >> 1) +
			    no_more_than(counted[i], MW_UNLIMITED);
	if (left >= MW_UNLIMITED) {
		share[0] = MW_UNLIMITED;
		share[1] = MW_UNLIMITED;
		return;
	}
	lesser = recent[1] <= recent[0];
	sum = recent[0] + recent[1];
	part = sum ? part_of(recent[lesser], sum) : 1 << (PART_SHIFT - 1);
	/* A counter that is almost still may start to count. */
	if (part < LEAST_PART)
		part = LEAST_PART;
	spare = left - 1;
	part = spare * part >> PART_SHIFT;
	share[lesser] = 1 + part;
	share[!lesser] = 1 + spare - part;
}
