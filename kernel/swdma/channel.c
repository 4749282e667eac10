// SPDX-License-Identifier: GPL-2.0-only
/*
 * A channel: dmaengine's operations, the thread that copies, and the tasklet that calls
 * clients back.
 *
 * A descriptor moves through the lists in order: free, prepared, submitted, issued, active
 * (the thread's), done, free. The thread holds the lock to decide but not to copy: during a
 * step the active descriptor belongs to it. A terminate during a step detaches that descriptor
 * from the channel, and the thread frees it after the step.
 */
#include <linux/dma-direct.h>
#include <linux/dma-mapping.h>
#include <linux/hrtimer.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/kthread.h>
#include <linux/log2.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/sizes.h>
#include <linux/string.h>

#include "faults.h"
#include "swdma.h"

/* Bytes copied between two checks for pause and terminate: some microseconds. */
#define STEP SZ_4K
/* Callbacks of one tasklet run, after which it is scheduled again. */
#define CALLBACKS 64
/* As a waiting time: until kick(). */
#define NEVER U64_MAX

static struct swdma_channel *to_channel(struct dma_chan *chan)
{
	return container_of(chan, struct swdma_channel, chan);
}

static void kick(struct swdma_channel *channel)
{
	WRITE_ONCE(channel->kicked, true);
	wake_up(&channel->wake);
}

static int add_length(struct resource *part, void *data)
{
	*(u64 *)data += resource_size(part);
	return 0;
}

/*
 * True if all of the range is RAM, and so in the kernel's linear mapping. Rounded to whole
 * pages, since the walk finds nothing in a range of one byte.
 */
static bool is_ram(phys_addr_t start, u32 length)
{
	u64 first = ALIGN_DOWN(start, PAGE_SIZE), end = ALIGN(start + length, PAGE_SIZE);
	u64 found = 0;

	/* No memory reaches the end of the address space. */
	if (end <= first)
		return false;
	walk_iomem_res_desc(IORES_DESC_NONE, IORESOURCE_SYSTEM_RAM | IORESOURCE_BUSY, first,
			    end - 1, &found, add_length);
	return found == end - first;
}

/* Copies a step, without the lock; before the first one checks that both sides are RAM. */
static enum dmaengine_tx_result copy_step(const struct swdma_descriptor *desc, u32 length)
{
	if (!desc->copied && !is_ram(desc->from, desc->length))
		return DMA_TRANS_READ_FAILED;
	if (!desc->copied && !is_ram(desc->to, desc->length))
		return DMA_TRANS_WRITE_FAILED;
	memcpy(phys_to_virt(desc->to + desc->copied), phys_to_virt(desc->from + desc->copied),
	       length);
	return DMA_TRANS_NOERROR;
}

static bool is_nth(u64 count, unsigned int every)
{
	return every && count % every == 0;
}

static struct swdma_descriptor *begin_next(struct swdma_channel *channel)
{
	struct swdma_descriptor *desc;
	bool fails;

	desc = list_first_entry_or_null(&channel->issued, struct swdma_descriptor, node);
	if (!desc)
		return NULL;
	list_del_init(&desc->node);
	channel->active = desc;
	channel->begun++;
	desc->runs_away = is_nth(channel->begun, READ_ONCE(swdma_faults.runaway));
	desc->late = is_nth(channel->begun, READ_ONCE(swdma_faults.late));
	desc->hangs = desc->runs_away || desc->late ||
		      is_nth(channel->begun, READ_ONCE(swdma_faults.hang));
	fails = is_nth(channel->begun, READ_ONCE(swdma_faults.fail_every));
	desc->silent = is_nth(channel->begun, READ_ONCE(swdma_faults.fail_silent));
	desc->twice = is_nth(channel->begun, READ_ONCE(swdma_faults.twice));
	desc->stop = desc->hangs || fails || desc->silent ? desc->length / 2 : desc->length;
	desc->result = fails ? DMA_TRANS_ABORTED : DMA_TRANS_NOERROR;
	return desc;
}

/* The rest of the delay before a descriptor whose bytes are all copied completes. */
static u64 delay_left(struct swdma_descriptor *desc)
{
	unsigned int delay_ns = READ_ONCE(swdma_faults.delay_ns);
	u64 now;

	if (!desc->due_ns && !delay_ns)
		return 0;
	now = ktime_get_ns();
	if (!desc->due_ns)
		desc->due_ns = now + delay_ns;
	return desc->due_ns > now ? desc->due_ns - now : 0;
}

static void complete_active(struct swdma_channel *channel)
{
	struct swdma_descriptor *desc = channel->active;

	channel->active = NULL;
	if (desc->silent && desc->result == DMA_TRANS_NOERROR)
		desc->copied = desc->length;
	desc->status = desc->result == DMA_TRANS_NOERROR ? DMA_COMPLETE : DMA_ERROR;
	channel->chan.completed_cookie = desc->tx.cookie;
	list_add_tail(&desc->node, &channel->done);
	channel->done_count++;
}

/* Copies a step of the active descriptor. Drops the lock for the copy. */
static void step(struct swdma_channel *channel, struct swdma_descriptor *desc)
	__must_hold(&channel->lock)
{
	u32 length = min_t(u32, STEP, desc->stop - desc->copied);
	enum dmaengine_tx_result result;

	channel->stepping = true;
	spin_unlock_irq(&channel->lock);
	result = copy_step(desc, length);
	spin_lock_irq(&channel->lock);
	if (channel->active != desc) {
		/* Terminated: unmap the descriptor before it is free for a new copy. */
		spin_unlock_irq(&channel->lock);
		dma_descriptor_unmap(&desc->tx);
		spin_lock_irq(&channel->lock);
		list_add_tail(&desc->node, &channel->free);
	} else if (result == DMA_TRANS_NOERROR) {
		desc->copied += length;
	} else {
		desc->result = result;
		desc->stop = desc->copied;
	}
	channel->stepping = false;
	channel->steps++;
	wake_up(&channel->settled);
}

/* Does what follows of a terminated descriptor when due. Return: ns until then, or NEVER. */
static u64 finish_runaway(struct swdma_channel *channel)
	__must_hold(&channel->lock)
{
	const struct dmaengine_result done = { .result = DMA_TRANS_NOERROR };
	struct swdma_runaway runaway = channel->runaway;
	u64 now = ktime_get_ns();

	if (!runaway.due_ns)
		return NEVER;
	if (runaway.due_ns > now)
		return runaway.due_ns - now;
	channel->runaway.due_ns = 0;
	spin_unlock_irq(&channel->lock);
	if (runaway.callback) {
		local_bh_disable();
		runaway.callback(runaway.param, &done);
		local_bh_enable();
	} else if (is_ram(runaway.from, runaway.length) && is_ram(runaway.to, runaway.length)) {
		memcpy(phys_to_virt(runaway.to), phys_to_virt(runaway.from), runaway.length);
	}
	spin_lock_irq(&channel->lock);
	return NEVER;
}

/* Takes the next step. Return: for how long (ns) there is nothing more to do. */
static u64 advance(struct swdma_channel *channel)
{
	struct swdma_descriptor *desc;
	bool completed = false;
	u64 rest = 0, next;

	spin_lock_irq(&channel->lock);
	WRITE_ONCE(channel->kicked, false);
	next = finish_runaway(channel);
	desc = channel->active;
	if (!desc && !channel->paused)
		desc = begin_next(channel);
	if (!desc || channel->paused) {
		rest = NEVER;
	} else if (desc->copied < desc->stop) {
		step(channel, desc);
	} else if (desc->hangs) {
		rest = NEVER;
	} else {
		rest = delay_left(desc);
		completed = !rest;
		if (completed)
			complete_active(channel);
	}
	spin_unlock_irq(&channel->lock);
	if (completed) {
		/* Enabling runs the tasklet at once, as after an interrupt. */
		local_bh_disable();
		tasklet_schedule(&channel->tasklet);
		local_bh_enable();
	}
	return min(rest, next);
}

static bool has_work(struct swdma_channel *channel)
{
	return READ_ONCE(channel->kicked) || kthread_should_stop();
}

int swdma_channel_thread(void *data)
{
	struct swdma_channel *channel = data;
	u64 rest;

	/* The default timer slack, 50 us, would spoil short delays. */
	current->timer_slack_ns = 1;
	while (!kthread_should_stop()) {
		rest = advance(channel);
		if (rest == NEVER)
			wait_event_idle(channel->wake, has_work(channel));
		else if (rest)
			wait_event_interruptible_hrtimeout(channel->wake, has_work(channel),
							   ns_to_ktime(rest));
		else
			cond_resched();
	}
	return 0;
}

/* Calls one client back. Return: whether there was one. */
static bool call_back(struct swdma_channel *channel)
{
	struct dmaengine_result result = {};
	dma_async_tx_callback_result with_result;
	dma_async_tx_callback without;
	struct swdma_descriptor *desc;
	unsigned long flags;
	unsigned int calls;
	void *param;

	spin_lock_irqsave(&channel->lock, flags);
	desc = list_first_entry_or_null(&channel->done, struct swdma_descriptor, node);
	if (desc)
		list_del_init(&desc->node);
	spin_unlock_irqrestore(&channel->lock, flags);
	if (!desc)
		return false;

	dma_descriptor_unmap(&desc->tx);
	with_result = desc->tx.callback_result;
	without = desc->tx.callback;
	param = desc->tx.callback_param;
	calls = desc->twice ? 2 : 1;
	result.result = desc->result;
	result.residue = desc->length - desc->copied;
	/* Free before the callback, which may prepare the next descriptor. */
	spin_lock_irqsave(&channel->lock, flags);
	list_add_tail(&desc->node, &channel->free);
	spin_unlock_irqrestore(&channel->lock, flags);

	for (; calls; calls--) {
		if (with_result)
			with_result(param, &result);
		else if (without)
			without(param);
	}

	spin_lock_irqsave(&channel->lock, flags);
	channel->settled_count++;
	spin_unlock_irqrestore(&channel->lock, flags);
	wake_up(&channel->settled);
	return true;
}

static void call_clients_back(struct tasklet_struct *tasklet)
{
	struct swdma_channel *channel = from_tasklet(channel, tasklet, tasklet);
	unsigned int left;

	for (left = CALLBACKS; left; left--)
		if (!call_back(channel))
			return;
	tasklet_schedule(tasklet);
}

/* Fails a submission as idxd's driver does: calls the client back, then returns an error. */
static dma_cookie_t fail_submission(struct swdma_channel *channel, struct swdma_descriptor *desc)
{
	const struct dmaengine_result aborted = {
		.result = DMA_TRANS_ABORTED,
		.residue = desc->length,
	};
	unsigned long flags;

	if (desc->tx.callback_result)
		desc->tx.callback_result(desc->tx.callback_param, &aborted);
	else if (desc->tx.callback)
		desc->tx.callback(desc->tx.callback_param);
	dma_descriptor_unmap(&desc->tx);
	spin_lock_irqsave(&channel->lock, flags);
	list_add_tail(&desc->node, &channel->free);
	spin_unlock_irqrestore(&channel->lock, flags);
	return -EIO;
}

static dma_cookie_t submit(struct dma_async_tx_descriptor *tx)
{
	struct swdma_descriptor *desc = container_of(tx, struct swdma_descriptor, tx);
	struct swdma_channel *channel = to_channel(tx->chan);
	unsigned long flags;
	dma_cookie_t cookie;

	spin_lock_irqsave(&channel->lock, flags);
	/* Already submitted, or dropped by a terminate. */
	if (tx->cookie != -EBUSY) {
		cookie = -EINVAL;
		goto unlock;
	}
	if (is_nth(++channel->submissions, READ_ONCE(swdma_faults.submit_fails))) {
		tx->cookie = 0;
		list_del_init(&desc->node);
		spin_unlock_irqrestore(&channel->lock, flags);
		return fail_submission(channel, desc);
	}
	cookie = channel->chan.cookie;
	cookie = cookie < DMA_MIN_COOKIE || cookie == INT_MAX ? DMA_MIN_COOKIE : cookie + 1;
	channel->chan.cookie = cookie;
	tx->cookie = cookie;
	desc->status = DMA_IN_PROGRESS;
	channel->recent[cookie & channel->recent_mask] = desc;
	list_move_tail(&desc->node, &channel->submitted);
unlock:
	spin_unlock_irqrestore(&channel->lock, flags);
	return cookie;
}

static struct dma_async_tx_descriptor *prepare_copy(struct dma_chan *chan, dma_addr_t to,
						    dma_addr_t from, size_t length,
						    unsigned long tx_flags)
{
	struct swdma_channel *channel = to_channel(chan);
	struct device *dev = chan->device->dev;
	struct swdma_descriptor *desc;
	unsigned long flags;

	if (!length || length > dma_get_max_seg_size(dev) || to + length - 1 < to ||
	    from + length - 1 < from || !is_dma_copy_aligned(chan->device, to, from, length))
		return NULL;

	spin_lock_irqsave(&channel->lock, flags);
	desc = list_first_entry_or_null(&channel->free, struct swdma_descriptor, node);
	if (desc) {
		list_move_tail(&desc->node, &channel->prepared);
		memset(&desc->tx, 0, sizeof(desc->tx));
		dma_async_tx_descriptor_init(&desc->tx, chan);
		desc->tx.tx_submit = submit;
		desc->tx.flags = tx_flags;
		desc->tx.cookie = -EBUSY;
		desc->to = dma_to_phys(dev, to);
		desc->from = dma_to_phys(dev, from);
		desc->length = length;
		desc->copied = 0;
		desc->due_ns = 0;
	}
	spin_unlock_irqrestore(&channel->lock, flags);
	return desc ? &desc->tx : NULL;
}

static void issue_pending(struct dma_chan *chan)
{
	struct swdma_channel *channel = to_channel(chan);
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	list_splice_tail_init(&channel->submitted, &channel->issued);
	spin_unlock_irqrestore(&channel->lock, flags);
	kick(channel);
}

static enum dma_status tx_status(struct dma_chan *chan, dma_cookie_t cookie,
				 struct dma_tx_state *state)
{
	struct swdma_channel *channel = to_channel(chan);
	struct swdma_descriptor *desc;
	enum dma_status status;
	unsigned long flags;
	u32 residue = 0;

	spin_lock_irqsave(&channel->lock, flags);
	status = dma_async_is_complete(cookie, chan->completed_cookie, chan->cookie);
	desc = channel->recent[cookie & channel->recent_mask];
	if (desc && desc->tx.cookie == cookie) {
		status = desc->status;
		residue = desc->length - desc->copied;
	}
	if (status == DMA_IN_PROGRESS && channel->paused)
		status = DMA_PAUSED;
	if (state) {
		state->last = chan->completed_cookie;
		state->used = chan->cookie;
		state->residue = residue;
		state->in_flight_bytes = 0;
	}
	spin_unlock_irqrestore(&channel->lock, flags);
	return status;
}

static void set_paused(struct swdma_channel *channel, bool paused)
{
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	channel->paused = paused;
	spin_unlock_irqrestore(&channel->lock, flags);
	kick(channel);
}

static int pause_channel(struct dma_chan *chan)
{
	set_paused(to_channel(chan), true);
	return 0;
}

static int resume_channel(struct dma_chan *chan)
{
	set_paused(to_channel(chan), false);
	return 0;
}

/* Schedules what follows of the descriptor, whatever happens to it. */
static void start_runaway(struct swdma_channel *channel, const struct swdma_descriptor *desc)
{
	channel->runaway = (struct swdma_runaway){
		.to = desc->to + desc->copied,
		.from = desc->from + desc->copied,
		.length = desc->length - desc->copied,
		.callback = desc->late ? desc->tx.callback_result : NULL,
		.param = desc->tx.callback_param,
		.due_ns = ktime_get_ns() + SWDMA_RUNAWAY_NS,
	};
}

/* Drops prepared descriptors too: dmaengine has no other way to release them. */
static int terminate_all(struct dma_chan *chan)
{
	struct swdma_channel *channel = to_channel(chan);
	struct swdma_descriptor *desc;
	unsigned long flags;
	LIST_HEAD(dropped);

	spin_lock_irqsave(&channel->lock, flags);
	list_for_each_entry(desc, &channel->done, node)
		channel->settled_count++;
	list_splice_tail_init(&channel->done, &dropped);
	if (channel->active) {
		channel->active->status = DMA_ERROR;
		/* One runaway at a time. */
		if ((channel->active->runs_away || channel->active->late) && !channel->stepping &&
		    !channel->runaway.due_ns)
			start_runaway(channel, channel->active);
		/* During a step the thread frees it. */
		if (!channel->stepping)
			list_add_tail(&channel->active->node, &dropped);
		channel->active = NULL;
	}
	list_for_each_entry(desc, &channel->issued, node)
		desc->status = DMA_ERROR;
	list_splice_tail_init(&channel->issued, &dropped);
	list_for_each_entry(desc, &channel->submitted, node)
		desc->status = DMA_ERROR;
	list_splice_tail_init(&channel->submitted, &dropped);
	list_for_each_entry(desc, &channel->prepared, node)
		desc->tx.cookie = 0;
	list_splice_tail_init(&channel->prepared, &dropped);
	channel->paused = false;
	spin_unlock_irqrestore(&channel->lock, flags);

	list_for_each_entry(desc, &dropped, node)
		dma_descriptor_unmap(&desc->tx);

	spin_lock_irqsave(&channel->lock, flags);
	list_splice_tail(&dropped, &channel->free);
	spin_unlock_irqrestore(&channel->lock, flags);
	wake_up(&channel->settled);
	kick(channel);
	return 0;
}

static bool is_settled(struct swdma_channel *channel, u64 steps, u64 done_count)
{
	unsigned long flags;
	bool settled;

	spin_lock_irqsave(&channel->lock, flags);
	settled = (!channel->stepping || channel->steps != steps) &&
		  channel->settled_count >= done_count;
	spin_unlock_irqrestore(&channel->lock, flags);
	return settled;
}

/*
 * Waits for the step and the callbacks that were under way. tasklet_kill() would lose a
 * tasklet that is scheduled meanwhile, and a channel may be synchronized while it works.
 */
static void synchronize(struct dma_chan *chan)
{
	struct swdma_channel *channel = to_channel(chan);
	u64 steps, done_count;

	spin_lock_irq(&channel->lock);
	steps = channel->steps;
	done_count = channel->done_count;
	spin_unlock_irq(&channel->lock);
	wait_event(channel->settled, is_settled(channel, steps, done_count));
}

static int alloc_resources(struct dma_chan *chan)
{
	struct swdma_channel *channel = to_channel(chan);
	/* One more, since cookies wrap from the highest to 1, not to 0. */
	unsigned int i, recent = roundup_pow_of_two(channel->limit + 1);

	channel->descriptors = kvcalloc(channel->limit, sizeof(*channel->descriptors), GFP_KERNEL);
	channel->recent = kvcalloc(recent, sizeof(*channel->recent), GFP_KERNEL);
	if (!channel->descriptors || !channel->recent) {
		kvfree(channel->descriptors);
		kvfree(channel->recent);
		return -ENOMEM;
	}
	channel->recent_mask = recent - 1;
	for (i = 0; i < channel->limit; i++)
		list_add_tail(&channel->descriptors[i].node, &channel->free);
	channel->begun = 0;
	channel->submissions = 0;
	chan->cookie = DMA_MIN_COOKIE;
	chan->completed_cookie = DMA_MIN_COOKIE;
	return channel->limit;
}

static void free_resources(struct dma_chan *chan)
{
	struct swdma_channel *channel = to_channel(chan);

	terminate_all(chan);
	synchronize(chan);
	INIT_LIST_HEAD(&channel->free);
	kvfree(channel->descriptors);
	kvfree(channel->recent);
}

void swdma_device_init(struct dma_device *device)
{
	INIT_LIST_HEAD(&device->channels);
	dma_cap_set(DMA_MEMCPY, device->cap_mask);
	/* Only for clients that request a channel: copies of RAID gain nothing from a thread. */
	dma_cap_set(DMA_PRIVATE, device->cap_mask);
	device->directions = BIT(DMA_MEM_TO_MEM);
	device->residue_granularity = DMA_RESIDUE_GRANULARITY_BURST;
	device->device_alloc_chan_resources = alloc_resources;
	device->device_free_chan_resources = free_resources;
	device->device_prep_dma_memcpy = prepare_copy;
	device->device_pause = pause_channel;
	device->device_resume = resume_channel;
	device->device_terminate_all = terminate_all;
	device->device_synchronize = synchronize;
	device->device_tx_status = tx_status;
	device->device_issue_pending = issue_pending;
}

void swdma_channel_init(struct swdma_channel *channel, struct dma_device *device,
			unsigned int limit)
{
	spin_lock_init(&channel->lock);
	init_waitqueue_head(&channel->wake);
	init_waitqueue_head(&channel->settled);
	tasklet_setup(&channel->tasklet, call_clients_back);
	channel->limit = limit;
	INIT_LIST_HEAD(&channel->free);
	INIT_LIST_HEAD(&channel->prepared);
	INIT_LIST_HEAD(&channel->submitted);
	INIT_LIST_HEAD(&channel->issued);
	INIT_LIST_HEAD(&channel->done);
	channel->chan.device = device;
	list_add_tail(&channel->chan.device_node, &device->channels);
}
