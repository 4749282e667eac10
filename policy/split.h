/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * One budget that two counters of a core use together, such as refills and
 * write-backs. Each counter interrupts after a share of the remaining budget; the
 * rest is then split again.
 *
 * A counter interrupts at its share's last event. Before the first interrupt each
 * has counted at most its share less one. These add up to one less than the
 * remaining budget, so the sum cannot reach it without an interrupt. The counter
 * that recently counted more gets the larger share, so a steady load causes a few
 * interrupts in a period.
 */
#ifndef MEMWARDEN_SPLIT_H
#define MEMWARDEN_SPLIT_H

#include "types.h"

#define MW_SPLIT 2

/**
 * struct mw_split - what the counters of one budget counted recently
 * @recent: half of the previous value, plus the events since the last split
 */
struct mw_split {
	u64 recent[MW_SPLIT];
};

void mw_split_left(struct mw_split *split, const u64 counted[MW_SPLIT],
		   u64 left, u64 share[MW_SPLIT]);

#endif /* MEMWARDEN_SPLIT_H */
