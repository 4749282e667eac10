/* SPDX-License-Identifier: GPL-2.0-only */
/* What swdma does wrong on demand: parameters, and an export for tests. */
#ifndef SWDMA_FAULTS_H
#define SWDMA_FAULTS_H

/**
 * struct swdma_faults - what goes wrong from the next descriptor on
 * @fail_every: of each channel's descriptors every n-th fails, 0 for none: half of
 *              it is copied, and its result is DMA_TRANS_ABORTED
 * @hang: of each channel's descriptors every n-th never ends, 0 for none: half of it
 *        is copied, and then nothing until the channel is terminated
 * @delay_ns: between a descriptor's last byte and its completion
 *
 * A channel counts what it has begun since it was requested. What is to fail and to
 * hang hangs.
 */
struct swdma_faults {
	unsigned int fail_every;
	unsigned int hang;
	unsigned int delay_ns;
};

extern struct swdma_faults swdma_faults;

#endif /* SWDMA_FAULTS_H */
