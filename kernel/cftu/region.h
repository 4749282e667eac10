/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kernel memory that an open file copies to and from.
 */
#ifndef CFTU_REGION_H
#define CFTU_REGION_H

#include <linux/types.h>

/**
 * struct region - an open file's kernel memory
 * @memory: the memory, or NULL
 * @bytes: its size
 * @reserved: it is the memory that the kernel reserves at boot (kernel/patches)
 */
struct region {
	u8 *memory;
	size_t bytes;
	bool reserved;
};

/* Allocates zeroed memory. Returns 0 or -ENOMEM. */
int cftu_region_get(struct region *region, size_t bytes);
/* Frees the memory, if there is any. */
void cftu_region_put(struct region *region);

#endif /* CFTU_REGION_H */
