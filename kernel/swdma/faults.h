/* SPDX-License-Identifier: GPL-2.0-only */
/* Faults that swdma injects on demand: parameters, and an export for tests. */
#ifndef SWDMA_FAULTS_H
#define SWDMA_FAULTS_H

/**
 * struct swdma_faults - faults of the descriptors that begin from now on
 * @fail_every: of each channel's descriptors every n-th fails, 0 for none: half of
 *              it is copied, and its result is DMA_TRANS_ABORTED
 * @hang: of each channel's descriptors every n-th never ends, 0 for none: half of it
 *        is copied, and then nothing until the channel is terminated
 * @delay_ns: between a descriptor's last byte and its completion
 * @fail_silent: of each channel's descriptors every n-th fails, 0 for none: half of it
 *               is copied, and it is said to have succeeded, as by a driver that calls
 *               back without a result
 * @runaway: of each channel's descriptors every n-th stops half-way as with @hang, 0 for
 *           none, and does not end with the channel's termination: the rest is written
 *           %SWDMA_RUNAWAY_NS after it
 * @late: of each channel's descriptors every n-th stops half-way as with @hang, 0 for none, and
 *        is called back as done %SWDMA_RUNAWAY_NS after the channel's termination
 * @submit_fails: of each channel's descriptors every n-th is called back as aborted while
 *                it is submitted, and the submission fails as well, 0 for none
 * @twice: of each channel's descriptors every n-th is called back twice, 0 for none
 *
 * A channel counts the descriptors that it has begun since it was requested, for @submit_fails
 * the submissions. If a descriptor is to fail and to hang, it hangs.
 *
 * @fail_silent, @runaway and @late deceive a client that knows swdma as a provider that reports
 * errors and stops on terminate: use them with another name, by the parameter driver=.
 */
struct swdma_faults {
	unsigned int fail_every;
	unsigned int hang;
	unsigned int delay_ns;
	unsigned int fail_silent;
	unsigned int runaway;
	unsigned int late;
	unsigned int submit_fails;
	unsigned int twice;
};

/* Long enough for a client to have freed its memory. */
#define SWDMA_RUNAWAY_NS (100 * NSEC_PER_MSEC)

extern struct swdma_faults swdma_faults;

#endif /* SWDMA_FAULTS_H */
