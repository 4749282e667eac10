// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is known about drivers, from their sources in Linux 6.12.
 *
 * dmaengine reads a callback without a result as success (dmaengine_desc_callback_invoke()
 * in drivers/dma/dmaengine.h), so an error reaches a client only if the driver gives it
 * with the callback. Many don't:
 *
 * xilinx-zynqmp-dma	zynqmp_dma_do_tasklet() resets the channel after an error;
 *			zynqmp_dma_reset() completes the first descriptor, and
 *			zynqmp_dma_chan_desc_cleanup() calls it back without a result.
 *			zynqmp_dma_device_terminate_all() masks interrupts and frees
 *			descriptors; the hardware goes on.
 * bcm2835-dma		bcm2835_dma_callback() doesn't look at the error bits of CS, and
 *			virt-dma's result stays DMA_TRANS_NOERROR. bcm2835_dma_abort() resets
 *			the channel also when its wait for outstanding writes has timed out.
 * dma-pl330		dma_pl330_rqcb() drops the error that pl330_dotask() gives it, and
 *			pl330_tasklet() calls back without a result. _stop() issues DMAKILL,
 *			and does not wait for it.
 *
 * Nor do the other drivers that use virt-dma, whose results only fsl-qdma and k3-udma set.
 */
#include <linux/kernel.h>
#include <linux/string.h>

#include "provider.h"

static const struct provider known[] = {
	/* Ours: call_back() gives each result, and synchronize() waits for the step under way. */
	{ .driver = "swdma", .reports = true, .stops = true },
	/*
	 * drivers/dma/ioat/dma.c: ioat_eh() gives DMA_TRANS_READ_FAILED or _WRITE_FAILED to the
	 * descriptor that failed, ioat_abort_descs() DMA_TRANS_ABORTED to those behind it. It
	 * has no terminate.
	 */
	{ .driver = "ioatdma", .reports = true },
	/*
	 * drivers/dma/idxd/dma.c: idxd_dma_complete_txd() gives DMA_TRANS_NOERROR for
	 * DSA_COMP_SUCCESS alone. It has no terminate.
	 */
	{ .driver = "idxd", .reports = true },
};

static const struct provider unknown = { .driver = "" };

const struct provider *cftu_provider_of(const char *driver)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(known); i++)
		if (!strcmp(driver, known[i].driver))
			return &known[i];
	return &unknown;
}
