/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kernel memory that an open file copies to and from.
 */
#ifndef CFTU_REGION_H
#define CFTU_REGION_H

#include <linux/types.h>

/**
 * struct region - it
 * @memory: NULL: none
 * @bytes: of it
 * @reserved: it is what the kernel keeps from boot on (kernel/patches)
 */
struct region {
	u8 *memory;
	size_t bytes;
	bool reserved;
};

/* Zeroed memory; 0 or -ENOMEM. */
int region_get(struct region *region, size_t bytes);
/* Also of none. */
void region_put(struct region *region);

#endif /* CFTU_REGION_H */
