/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Copies between user and kernel memory, cut into what a channel takes.
 */
#ifndef CFTU_COPY_H
#define CFTU_COPY_H

#include "cftu.h"

/**
 * struct copied - how a copy was done
 * @engine_bytes: by the engine; the CPU did the rest
 * @channel: that had its last part by engine, or CFTU_NO_CHANNEL
 */
struct copied {
	u64 engine_bytes;
	u32 channel;
};

/*
 * What the exported functions do, with the engine asked for however short the copy
 * is; and what came of it. @kernel is cftu's own memory: others' is the engine's in the
 * linear map alone.
 */
unsigned long copy_user(void *kernel, unsigned long user, unsigned long bytes,
			enum cftu_direction direction, struct copied *copied);
int copy_pinned(void *kernel, struct cftu_pinned *pinned, size_t offset, size_t bytes,
		enum cftu_direction direction, struct copied *copied);

/* As a usercopy_engine: returns what is left to the CPU. */
unsigned long copy_for_kernel(void *kernel, unsigned long user, unsigned long bytes,
			      bool to_user, unsigned long *by_engine);

/* The CPU's copy, counted as asked for. */
unsigned long copy_by_cpu(void *kernel, unsigned long user, unsigned long bytes,
			  enum cftu_direction direction);

/* Of pinned memory: whether this range of user memory is inside, and where. */
bool pinned_holds(const struct cftu_pinned *pinned, unsigned long address, size_t bytes,
		  size_t *offset);
bool pinned_is_writable(const struct cftu_pinned *pinned);
/* Writes the range's cache lines back and drops them. */
void pinned_flush(struct cftu_pinned *pinned, size_t offset, size_t bytes);

void copy_statistics(struct cftu_statistics *statistics);
unsigned long copy_min_bytes(void);
/* Unless it was given; once there is an engine with a policy. */
void copy_measure_min_bytes(void);

#endif /* CFTU_COPY_H */
