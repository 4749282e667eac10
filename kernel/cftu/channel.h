/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The engine: DMA channels, and one transfer on one of them. Who may take which
 * channel when is policy.h's; what is copied is copy.c's.
 */
#ifndef CFTU_CHANNEL_H
#define CFTU_CHANNEL_H

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/dmaengine.h>
#include <linux/mutex.h>
#include <linux/rtmutex.h>
#include <linux/types.h>
#include <memwarden/cftu.h>

#include "provider.h"

/*
 * Descriptors in one transfer. A Zynq channel has 32; with 4 KiB pages 16 are 64
 * KiB, after which another task gets its turn.
 */
#define TRANSFER_PIECES 16

/**
 * struct piece - a part of a copy that lies in one page on either side
 * @from: page to read
 * @to: page to write
 * @from_at: offset in @from, in bytes
 * @to_at: offset in @to, in bytes
 * @bytes: how many
 */
struct piece {
	struct page *from;
	struct page *to;
	unsigned int from_at;
	unsigned int to_at;
	unsigned int bytes;
};

/**
 * struct channel - a DMA channel and the transfer on it
 * @dma: it
 * @index: its number here
 * @lock: held over a transfer, and to take the channel anew
 * @load: tasks that hold or await @lock
 * @dead: it is not used any more; under @lock, read without it
 * @pausing: over @paused, @pausable and @paused_since
 * @paused: the policy paused it
 * @pausable: @dma may be told to pause
 * @paused_since: since when, in ns of CLOCK_MONOTONIC
 * @ended: all descriptors of the transfer have ended
 * @left: descriptors that have not, and one more while they are being made
 * @failed: one of them did
 * @sequence: the transfer's number
 * @tickets: of the descriptors that have not ended, else 0: each ends once, and no other
 *	transfer's callback ends it
 * @sources: bus addresses of the pieces
 * @targets: bus addresses of the pieces
 * @piece_ns: what a piece takes of late, for admission
 * @counted: what CFTU_CHANNEL shows; written under @lock, but for @paused_ns,
 *	which is under @pausing
 */
struct channel {
	struct dma_chan *dma;
	unsigned int index;
	struct rt_mutex lock;
	atomic_t load;
	bool dead;
	struct mutex pausing; /* over the next three */
	bool paused;
	bool pausable;
	u64 paused_since;
	struct completion ended;
	atomic_t left;
	bool failed;
	unsigned long sequence;
	unsigned long tickets[TRANSFER_PIECES];
	dma_addr_t sources[TRANSFER_PIECES];
	dma_addr_t targets[TRANSFER_PIECES];
	u64 piece_ns;
	struct cftu_channel counted;
};

/**
 * struct engine - all channels, and what they have in common
 * @channels: them
 * @count: how many, at least 1
 * @align: what addresses and lengths must be multiples of, a power of 2
 * @piece_bytes: the longest piece
 * @coherent: the engine sees the CPUs' caches
 * @can_pause: every channel can be paused and resumed
 * @poll_bytes: the longest transfer whose end is polled for
 * @provider: the channels' driver
 * @known: what is known about it
 * @compares: the CPU compares what was copied
 */
struct engine {
	struct channel *channels;
	unsigned int count;
	unsigned int align;
	unsigned int piece_bytes;
	bool coherent;
	bool can_pause;
	unsigned long poll_bytes;
	const char *provider;
	const struct provider *known;
	bool compares;
};

extern struct engine engine;

/* What one transfer came to. */
enum transfer_end {
	TRANSFER_DONE,		/* the pieces said were copied */
	TRANSFER_REFUSED,	/* the engine took not even the first: nothing was begun */
	TRANSFER_FAILED,	/* the pieces said may have been copied, or not, or half */
	TRANSFER_LOST,		/* the same, and the engine may be at them yet */
};

/**
 * engine_transfer() - copy pieces by a channel, and wait for the end
 * @channel: locked by the caller, not dead
 * @pieces: what to copy
 * @count: in: how many, 1 to TRANSFER_PIECES; out: how many were taken, from the first
 * @timeout_ns: when it counts as hanging
 *
 * On return the engine does not touch the pieces any more. Where it hung, and is not known to
 * stop when told to, that can't be said: TRANSFER_LOST. Then the pieces' pages have a
 * reference more, for good, and the channel is dead.
 */
enum transfer_end engine_transfer(struct channel *channel, const struct piece *pieces,
				  unsigned int *count, u64 timeout_ns);

/**
 * engine_may_keep() - whether a page can be held back should a transfer be lost
 * @page: of kernel memory
 *
 * A reference keeps a page from the page allocator, and so from another owner; not an object
 * of a slab, nor a page that is a part of a larger one without being counted.
 *
 * Return: whether a reference keeps it, or none will be needed.
 */
bool engine_may_keep(struct page *page);

/**
 * channel_pause() - pause or resume a channel; may sleep
 * @channel: of an engine that can_pause
 * @pause: which
 */
void channel_pause(struct channel *channel, bool pause);

/* Takes the channels as the module's parameters say; 0 or an errno, with its line. */
int engine_start(void);
void engine_stop(void);

#endif /* CFTU_CHANNEL_H */
