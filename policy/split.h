/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * One budget that two counters of a core count together, such as refills and
 * write-backs. Each interrupts after a share of what is left, and then what is
 * left is split again.
 *
 * A counter interrupts at its share's last event. As long as none has, each has
 * counted its share less one at most. The shares less one add up to one less than
 * what is left: so the sum cannot have reached that unseen. The counter that
 * counted more of late gets the larger share, and a core that goes on as it did
 * is interrupted a few times in a period.
 */
#ifndef MEMWARDEN_SPLIT_H
#define MEMWARDEN_SPLIT_H

#include "types.h"

#define MW_SPLIT 2

/**
 * struct mw_split - what the counters of one budget counted of late
 * @recent: half of the last time's, and what came since
 */
struct mw_split {
	u64 recent[MW_SPLIT];
};

void mw_split_left(struct mw_split *split, const u64 counted[MW_SPLIT],
		   u64 left, u64 share[MW_SPLIT]);

#endif /* MEMWARDEN_SPLIT_H */
