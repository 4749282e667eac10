// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernel's own copies.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/kernel.h>
#include <linux/printk.h>

#include "copy.h"
#include "kernel-copies.h"

#ifdef CONFIG_USERCOPY_DMA
#include <linux/usercopy_hooks.h>

static bool started;

enum cftu_policy_kind cftu_kernel_copies_policy(void)
{
	return usercopy_dma_policy() == USERCOPY_DMA_POLICY_EXCLUSIVE ? CFTU_POLICY_EXCLUSIVE :
									CFTU_POLICY_SHARED;
}

void cftu_kernel_copies_start(void)
{
	if (usercopy_dma_policy() == USERCOPY_DMA_POLICY_OFF)
		return;
	if (usercopy_dma_start(cftu_copy_for_kernel, cftu_copy_min_bytes())) {
		pr_warn("another module makes the kernel's copies\n");
		return;
	}
	started = true;
	pr_info("the kernel's copies of %lu bytes or more use a channel\n",
		cftu_copy_min_bytes());
}

void cftu_kernel_copies_stop(void)
{
	if (started)
		usercopy_dma_stop();
}

void cftu_kernel_copies_min_bytes(unsigned long min_bytes)
{
	if (started)
		usercopy_dma_min_bytes(min_bytes);
}
#else
enum cftu_policy_kind cftu_kernel_copies_policy(void)
{
	return CFTU_POLICY_SHARED;
}

void cftu_kernel_copies_start(void)
{
}

void cftu_kernel_copies_stop(void)
{
}

void cftu_kernel_copies_min_bytes(unsigned long min_bytes)
{
}
#endif
