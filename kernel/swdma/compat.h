/* SPDX-License-Identifier: GPL-2.0-only */
/* All that differs between the kernels and architectures that we build for. */
#ifndef SWDMA_COMPAT_H
#define SWDMA_COMPAT_H

#include <linux/device.h>
#include <linux/version.h>

/*
 * swdma_set_coherent() - mark the device cache-coherent. The CPU copies through its caches;
 * an invalidation, as after a write by a non-coherent device, would lose the data. On
 * architectures where all devices are coherent there is nothing to set.
 */
#if defined(CONFIG_ARCH_HAS_SYNC_DMA_FOR_DEVICE) || defined(CONFIG_ARCH_HAS_SYNC_DMA_FOR_CPU) || \
	defined(CONFIG_ARCH_HAS_SYNC_DMA_FOR_CPU_ALL)
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 2, 0)
static inline void swdma_set_coherent(struct device *dev)
{
	dev->dma_coherent = true;
}
#else
static inline void swdma_set_coherent(struct device *dev)
{
	dev_set_dma_coherent(dev);
}
#endif
#else
static inline void swdma_set_coherent(struct device *dev)
{
}
#endif

#endif /* SWDMA_COMPAT_H */
