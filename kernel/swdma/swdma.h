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
 * @tx: the client's descriptor; its cookie is -EBUSY from preparation to submission
 * @node: in one of the channel's lists, except while active
 * @to: destination, a physical address
 * @from: source, a physical address
 * @length: bytes
 * @copied: bytes, so far
 * @stop: bytes to copy; fewer than @length if it is to fail or hang
 * @due_ns: when it completes; 0 until all is copied
 * @hangs: it never completes
 * @runs_away: the rest is written after the channel is terminated
 * @late: its client is called back after the channel is terminated
 * @silent: it fails, and reports success
 * @twice: its client is called back twice
 * @status: for tx_status, from submission until the next preparation
 * @result: for the callback
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
	bool late;
	bool silent;
	bool twice;
	enum dma_status status;
	enum dmaengine_tx_result result;
};

/**
 * struct swdma_runaway - what follows later of a terminated descriptor: its rest, or its callback
 * @to: destination, a physical address
 * @from: source, a physical address
 * @length: bytes to write
 * @callback: the client's, or NULL
 * @param: for @callback
 * @due_ns: when; 0 if there is no runaway
 */
struct swdma_runaway {
	phys_addr_t to;
	phys_addr_t from;
	u32 length;
	dma_async_tx_callback_result callback;
	void *param;
	u64 due_ns;
};

/**
 * struct swdma_channel - a channel: its thread, and its descriptors
 * @chan: dmaengine's channel
 * @thread: copies
 * @tasklet: calls the clients back, as an interrupt would
 * @wake: where the thread waits
 * @settled: where synchronize waits
 * @lock: protects all that follows, and the cookies in @chan
 * @limit: number of descriptors
 * @descriptors: all descriptors, while a client holds the channel
 * @recent: descriptors by the low bits of their cookies
 * @recent_mask: mask of those bits
 * @free: unused, the longest unused first
 * @prepared: not submitted
 * @submitted: not issued
 * @issued: waiting for the thread
 * @done: waiting for the tasklet
 * @active: the descriptor that the thread works on
 * @runaway: what follows of a terminated descriptor
 * @begun: descriptors begun since the request, for the periodic faults
 * @submissions: descriptors submitted since the request, for the same
 * @done_count: descriptors that entered @done since the module was loaded
 * @settled_count: those of them that were called back or dropped
 * @steps: steps that the thread has ended
 * @stepping: the thread is in a step, and uses @active without the lock
 * @paused: the thread begins no step
 * @kicked: the thread has to check its lists again
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
 * swdma_device_init() - set the device's capabilities and operations
 * @device: the caller sets the other fields
 */
void swdma_device_init(struct dma_device *device);

/**
 * swdma_channel_init() - initialise a channel, without its thread
 * @channel: zeroed memory
 * @device: the channel is added to it
 * @limit: number of descriptors
 */
void swdma_channel_init(struct swdma_channel *channel, struct dma_device *device,
			unsigned int limit);

/**
 * swdma_channel_thread() - a channel's thread, until it is stopped
 * @data: the channel
 *
 * Return: 0.
 */
int swdma_channel_thread(void *data);

#endif /* SWDMA_H */
