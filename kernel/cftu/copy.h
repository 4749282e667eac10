/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Copies between user and kernel memory, cut into what a channel takes.
 */
#ifndef CFTU_COPY_H
#define CFTU_COPY_H

#include "cftu.h"

/**
 * struct copied - how a copy was done
 * @engine_bytes: bytes by the engine; the CPU copied the rest
 * @channel: channel of the last part by engine, or CFTU_NO_CHANNEL
 */
struct copied {
	u64 engine_bytes;
	u32 channel;
};

/*
 * Like the exported functions, but the engine copies whatever the size, and @copied reports
 * how. @kernel is cftu's own memory; for other callers the engine copies in the linear map only.
 */
unsigned long cftu_copy_user(void *kernel, unsigned long user, unsigned long bytes,
			     enum cftu_direction direction, struct copied *copied);
int cftu_copy_pinned(void *kernel, struct cftu_pinned *pinned, size_t offset, size_t bytes,
		     enum cftu_direction direction, struct copied *copied);

/* A usercopy_engine: returns the bytes left to the CPU. */
unsigned long cftu_copy_for_kernel(void *kernel, unsigned long user, unsigned long bytes,
				   bool to_user, unsigned long *by_engine);

/* Sets the memory to 0, for a caller that may sleep: 1 GiB must not keep the core for long. */
void cftu_clear(void *memory, size_t bytes);

/* Copies by CPU, counted as asked for. */
unsigned long cftu_copy_by_cpu(void *kernel, unsigned long user, unsigned long bytes,
			       enum cftu_direction direction);

/* True if the range lies in the pinned memory; @offset: where. */
bool cftu_pinned_holds(const struct cftu_pinned *pinned, unsigned long address, size_t bytes,
		       size_t *offset);
bool cftu_pinned_is_writable(const struct cftu_pinned *pinned);
/* Writes the range's cache lines back and drops them. */
void cftu_pinned_flush(struct cftu_pinned *pinned, size_t offset, size_t bytes);

void cftu_copy_statistics(struct cftu_statistics *statistics);
unsigned long cftu_copy_min_bytes(void);
/* Measures min_bytes unless the parameter gave it. Needs an engine with a policy. */
void cftu_copy_measure_min_bytes(void);

#endif /* CFTU_COPY_H */
