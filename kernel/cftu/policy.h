/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The policy: which channel a transfer takes, and when.
 */
#ifndef CFTU_POLICY_H
#define CFTU_POLICY_H

#include "cftu.h"
#include "channel.h"

/**
 * struct claim - a channel, for one transfer
 * @channel: locked; NULL: there is none, the CPU copies
 * @pieces: at most so many in this transfer
 * @timeout_ns: when it counts as hanging
 */
struct claim {
	struct channel *channel;
	unsigned int pieces;
	u64 timeout_ns;
};

/* May sleep until the channel is free and its time has come. */
void policy_claim(struct claim *claim);
/* Also for a claim without a channel. */
void policy_release(const struct claim *claim);

/* The policy that is in force, how often one was set; and whether a channel is high. */
void policy_show(struct cftu_info *info);
u64 policy_times(void);
bool policy_is_high(unsigned int channel);
/* As it was a moment ago. */
bool policy_is_off(void);

/* The policy of the module's parameters; 0 or an errno, with its line. */
int policy_start(void);

#endif /* CFTU_POLICY_H */
