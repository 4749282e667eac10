/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef SWDMA_H
#define SWDMA_H

#include <linux/dmaengine.h>
#include <linux/interrupt.h>
#include <linux/list.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>

/**
 * struct swdma_descriptor - one copy
 * @tx: what the client sees; its cookie is -EBUSY from preparation to submission
 * @node: in one of the channel's lists, but for the active one
 * @to: destination, a physical address
 * @from: source, a physical address
 * @length: bytes
 * @copied: bytes, so far
 * @stop: how many bytes to copy; fewer than @length where it is to fail or hang
 * @due_ns: when it completes; 0 until all is copied
 * @hangs: it never completes
 * @runs_away: nor does it end when the channel is terminated
 * @silent: what is not copied is not told
 * @twice: its client is called back twice
 * @status: as tx_status tells it, from submission until the next preparation
 * @result: as its callback is told it
 */
struct swdma_descriptor {
	struct dma_async_tx_descriptor tx;
	struct list_head node;
	phys_addr_t to;
	phys_addr_t from;
	u32 length;
	u32 copied;
	u32 stop;
	u64 due_ns;
	bool hangs;
	bool runs_away;
	bool silent;
	bool twice;
	enum dma_status status;
	enum dmaengine_tx_result result;
};

/**
 * struct swdma_runaway - what a terminated descriptor writes yet
 * @to: destination, a physical address
 * @from: source, a physical address
 * @length: bytes; 0: there is none
 * @due_ns: when
 */
struct swdma_runaway {
	phys_addr_t to;
	phys_addr_t from;
	u32 length;
	u64 due_ns;
};

/**
 * struct swdma_channel - a thread, and the descriptors that are on their way to it
 * @chan: what the client sees
 * @thread: copies
 * @tasklet: calls the clients back, as an interrupt would
 * @wake: where the thread waits
 * @settled: where synchronize waits
 * @lock: all that follows, and the cookies in @chan
 * @limit: how many descriptors a client may have
 * @descriptors: all of them, while the channel is held
 * @recent: descriptors by the low bits of their cookies
 * @recent_mask: those bits
 * @free: to prepare, the longest unused first
 * @prepared: not submitted
 * @submitted: not issued
 * @issued: waiting for the thread
 * @done: waiting for the tasklet
 * @active: the thread's
 * @runaway: of a descriptor that was terminated
 * @begun: how many the thread has taken up, for the faults that come every so often
 * @submissions: how many were submitted, for the same
 * @done_count: how many have entered @done since the module was loaded
 * @settled_count: how many of those were called back or dropped
 * @steps: how many steps the thread has ended
 * @stepping: the thread is in a step, and uses @active without the lock
 * @paused: the thread begins no step
 * @kicked: the thread has to look again
 */
struct swdma_channel {
	struct dma_chan chan;
	struct task_struct *thread;
	struct tasklet_struct tasklet;
	wait_queue_head_t wake;
	wait_queue_head_t settled;
	spinlock_t lock; /* all below */
	unsigned int limit;
	struct swdma_descriptor *descriptors;
	struct swdma_descriptor **recent;
	unsigned int recent_mask;
	struct list_head free;
	struct list_head prepared;
	struct list_head submitted;
	struct list_head issued;
	struct list_head done;
	struct swdma_descriptor *active;
	struct swdma_runaway runaway;
	u64 begun;
	u64 submissions;
	u64 done_count;
	u64 settled_count;
	u64 steps;
	bool stepping;
	bool paused;
	bool kicked;
};

/**
 * swdma_device_init() - say what the channels can do
 * @device: gets the operations; the rest of it is the caller's
 */
void swdma_device_init(struct dma_device *device);

/**
 * swdma_channel_init() - make a channel, without its thread
 * @channel: zeroed memory
 * @device: gets the channel
 * @limit: how many descriptors a client may have
 */
void swdma_channel_init(struct swdma_channel *channel, struct dma_device *device,
			unsigned int limit);

/**
 * swdma_channel_thread() - what a channel's thread runs until it is stopped
 * @data: the channel
 *
 * Return: 0.
 */
int swdma_channel_thread(void *data);

#endif /* SWDMA_H */
