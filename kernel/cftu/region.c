// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kernel memory that an open file copies to and from: the block that the kernel reserves at
 * boot, or else vmalloc()ed pages.
 */
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#include "channel.h"
#include "copy.h"
#include "region.h"

#ifdef CONFIG_USERCOPY_REGION
#include <linux/usercopy_region.h>

static u8 *take_reserved(size_t bytes)
{
	size_t kept;
	u8 *memory = usercopy_region_take(&kept);

	if (memory && kept < bytes) {
		usercopy_region_give();
		return NULL;
	}
	return memory;
}
#else
static u8 *take_reserved(size_t bytes)
{
	return NULL;
}

static void usercopy_region_give(void)
{
}
#endif

int cftu_region_get(struct region *region, size_t bytes)
{
	u8 *memory = take_reserved(bytes);

	region->reserved = memory;
	if (memory)
		cftu_clear(memory, bytes);
	/* Unchecked, the OOM killer would end other programs before the allocation fails. */
	else if (si_mem_available() >= (long)(bytes >> PAGE_SHIFT))
		memory = __vmalloc(bytes, GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN);
	if (!memory)
		return -ENOMEM;
	region->memory = memory;
	region->bytes = bytes;
	return 0;
}

void cftu_region_put(struct region *region)
{
	if (!region->reserved)
		vfree(region->memory);
	/* A lost transfer may still write to it, so no other file may get it. */
	else if (!cftu_engine_has_lost())
		usercopy_region_give();
	*region = (struct region){};
}
