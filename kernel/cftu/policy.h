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
 * @channel: locked, or NULL: the CPU copies
 * @pieces: the most pieces of this transfer
 * @timeout_ns: after this the transfer counts as hanging
 */
struct claim {
	struct channel *channel;
	unsigned int pieces;
	u64 timeout_ns;
};

/*
 * May sleep until the channel is free and the policy lets it go. Returns 0, or -EINTR after a
 * fatal signal: nothing is claimed then.
 */
int cftu_policy_claim(struct claim *claim);
/* Call it for claims without a channel too. */
void cftu_policy_release(const struct claim *claim);

/* The policy in force; how often one was set; whether a channel is high. */
void cftu_policy_show(struct cftu_info *info);
u64 cftu_policy_times(void);
bool cftu_policy_is_high(unsigned int channel);
/* Unlocked: the result may be out of date. */
bool cftu_policy_is_off(void);

/* Sets the policy of the parameters. Returns 0, or an errno after logging a line. */
int cftu_policy_start(void);

#endif /* CFTU_POLICY_H */
