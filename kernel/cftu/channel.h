/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The engine: DMA channels, and one transfer on one of them. policy.h chooses the channel
 * and the time; copy.c chooses what is copied.
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
 * Descriptors in one transfer. A Zynq channel has 32; with 4 KiB pages 16 of them move 64 KiB
 * before another task gets the channel. copy.c keeps transfers to 64 KiB with larger pages, too.
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
 * @dma: the DMA channel
 * @index: its index in the engine
 * @lock: held over a transfer, and while the channel is requested again
 * @load: tasks that hold or wait for @lock
 * @dead: no copy uses the channel any more; written under @lock, read without it
 * @pausing: protects @paused, @pausable and @paused_since
 * @paused: the policy paused it
 * @pausable: dmaengine_pause() may be called for @dma
 * @paused_since: since when, in ns of CLOCK_MONOTONIC
 * @ended: all descriptors of the transfer have ended
 * @left: descriptors that have not ended, and one more while they are being submitted
 * @failed: a descriptor of the transfer failed
 * @sequence: the transfer's number
 * @tickets: the ticket of each descriptor that has not ended, else 0. It lets a descriptor
 *	end once, and by its own transfer's callback only
 * @sources: bus addresses of the pieces
 * @targets: bus addresses of the pieces
 * @piece_ns: moving average of a piece's time, for admission
 * @counted: what CFTU_CHANNEL reports; written under @lock, except @paused_ns,
 *	written under @pausing
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
 * struct engine - all channels, and their common limits
 * @channels: the channels
 * @count: number of channels, at least 1
 * @align: what addresses and lengths must be multiples of, a power of 2
 * @piece_bytes: the longest piece
 * @coherent: the engine sees the CPUs' caches
 * @can_pause: every channel can be paused and resumed
 * @poll_bytes: the longest transfer whose end is polled for
 * @provider: name of the channels' driver, which may be gone while a channel is requested again
 * @known: what provider.c knows about that driver
 * @compares: the CPU compares source and target after each transfer
 */
struct engine {
	struct channel *channels;
	unsigned int count;
	unsigned int align;
	unsigned int piece_bytes;
	bool coherent;
	bool can_pause;
	unsigned long poll_bytes;
	char provider[CFTU_NAME_BYTES];
	const struct provider *known;
	bool compares;
};

extern struct engine cftu_engine;

/* The outcome of a transfer. */
enum transfer_end {
	TRANSFER_DONE,		/* the pieces were copied */
	TRANSFER_REFUSED,	/* the engine took no piece; nothing was begun */
	TRANSFER_FAILED,	/* the pieces may be copied, partly copied, or not */
	TRANSFER_LOST,		/* failed, and the engine may still access the pieces */
};

/**
 * cftu_engine_transfer() - copy pieces by a channel, and wait for the end
 * @channel: locked by the caller, not dead
 * @pieces: what to copy
 * @count: in: how many, 1 to TRANSFER_PIECES; out: how many were taken, from the first
 * @timeout_ns: when it counts as hanging
 *
 * On return the engine does not access the pieces any more, except after TRANSFER_LOST: it
 * hung, and its driver is not known to stop it. The pieces' pages then keep an extra reference
 * for good, and the channel is dead.
 */
enum transfer_end cftu_engine_transfer(struct channel *channel, const struct piece *pieces,
				       unsigned int *count, u64 timeout_ns);

/**
 * cftu_engine_may_keep() - test if a page can be kept allocated after a lost transfer
 * @page: a page of kernel memory
 *
 * A page reference keeps the page from being freed and reused. It does not keep a slab object,
 * or a tail page of an uncounted compound page.
 *
 * Return: true if a reference keeps the page, or if none will be needed.
 */
bool cftu_engine_may_keep(struct page *page);

/**
 * cftu_channel_pause() - pause or resume a channel; may sleep
 * @channel: of an engine that can_pause
 * @pause: which
 */
void cftu_channel_pause(struct channel *channel, bool pause);

/*
 * Takes channels by the module's parameters, without using them yet. Returns 0, or an errno
 * after logging a line.
 */
int cftu_engine_start(void);
/* Measures poll_bytes unless the parameter gave it, and logs what the engine is. */
void cftu_engine_measure(void);
/*
 * True if a transfer was lost: the driver may call back, so cftu must stay loaded. Call it while
 * no copy uses the engine.
 */
bool cftu_engine_has_lost(void);
/* Releases the channels of an engine that has lost no transfer. */
void cftu_engine_stop(void);

#endif /* CFTU_CHANNEL_H */
