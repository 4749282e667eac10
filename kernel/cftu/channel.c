// SPDX-License-Identifier: GPL-2.0-only
/*
 * The engine: takes DMA channels, and moves pieces by them.
 *
 * A channel has one transfer at a time, under its lock. So terminating a transfer that fails
 * or hangs loses no other one, and the transfer's state is part of the channel.
 *
 * provider.c lists which drivers report errors and stop the hardware. If a driver may hide
 * errors, the CPU compares source and target after each transfer, unless cftu was loaded with
 * compare=0. If a driver may leave the hardware running after a terminate, the memory that the
 * hardware may write to stays allocated until the next boot.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpumask.h>
#include <linux/device.h>
#include <linux/dma-map-ops.h>
#include <linux/highmem.h>
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "channel.h"

static uint channels;
module_param(channels, uint, 0444);
MODULE_PARM_DESC(channels, "DMA channels to take (default 0: one for each CPU, or what there is)");

static char *provider = "";
module_param(provider, charp, 0444);
MODULE_PARM_DESC(provider, "the driver whose channels to take, e.g. swdma (default: the first that has any)");

static uint align = 1;
module_param(align, uint, 0444);
MODULE_PARM_DESC(align, "bytes that addresses and lengths must be multiples of, if the provider does not say it (default 1, a power of 2 up to 4096)");

static bool compare = true;
module_param(compare, bool, 0444);
MODULE_PARM_DESC(compare, "compare what was copied where the driver may hide errors (default 1); 0 is for engines that are known not to fail");

static long poll_bytes = -1;

static int poll_bytes_set(const char *text, const struct kernel_param *parameter)
{
	long value;
	int err = kstrtol(text, 0, &value);

	if (err)
		return err;
	if (value < -1)
		return -EINVAL;
	*(long *)parameter->arg = value;
	if (value >= 0)
		WRITE_ONCE(cftu_engine.poll_bytes, value);
	return 0;
}

static int poll_bytes_get(char *text, const struct kernel_param *parameter)
{
	return sysfs_emit(text, "%lu\n", READ_ONCE(cftu_engine.poll_bytes));
}

static const struct kernel_param_ops poll_bytes_operations = {
	.set = poll_bytes_set,
	.get = poll_bytes_get,
};
module_param_cb(poll_bytes, &poll_bytes_operations, &poll_bytes, 0644);
MODULE_PARM_DESC(poll_bytes, "largest transfer whose end is polled for, bytes (default: measured at load)");

struct engine cftu_engine;

/*
 * After this time a poll gives way to the interrupt: a task must not spin for a slow
 * transfer, or for a thread that its own CPU has to run (swdma).
 */
#define POLL_NS (50 * NSEC_PER_USEC)

/* The weight of a new piece in the moving average of piece_ns: 1/8. */
#define PIECE_NS_SHIFT 3

static struct device *device_of(struct channel *channel)
{
	return dmaengine_get_dma_device(channel->dma);
}

static void drop_descriptor(struct channel *channel)
{
	if (atomic_dec_and_test(&channel->left))
		complete(&channel->ended);
}

/*
 * A descriptor's ticket names its transfer, channel and piece, so that a duplicate or late
 * callback cannot end another one. All tickets are taken back before the channel's next
 * transfer.
 */
#define PIECE_BITS 4
#define CHANNEL_BITS 6

static unsigned long ticket_of(const struct channel *channel, unsigned int piece)
{
	BUILD_BUG_ON(TRANSFER_PIECES > 1 << PIECE_BITS);
	BUILD_BUG_ON(CFTU_CHANNELS_MAX > 1 << CHANNEL_BITS);
	return channel->sequence << (PIECE_BITS + CHANNEL_BITS) |
	       (unsigned long)channel->index << PIECE_BITS | piece;
}

/* True for the first caller with this ticket: a piece ends once. */
static bool claim_piece_end(struct channel *channel, unsigned int piece, unsigned long ticket)
{
	return cmpxchg(&channel->tickets[piece], ticket, 0) == ticket;
}

static void piece_ended(void *ticket_, const struct dmaengine_result *result)
{
	unsigned long ticket = (unsigned long)ticket_;
	unsigned int piece = ticket & GENMASK(PIECE_BITS - 1, 0);
	struct channel *channel =
		&cftu_engine.channels[ticket >> PIECE_BITS & GENMASK(CHANNEL_BITS - 1, 0)];

	if (!claim_piece_end(channel, piece, ticket))
		return;
	if (!result || result->result != DMA_TRANS_NOERROR)
		WRITE_ONCE(channel->failed, true);
	drop_descriptor(channel);
}

static bool map_piece(struct channel *channel, const struct piece *piece, unsigned int i)
{
	struct device *device = device_of(channel);

	channel->sources[i] = dma_map_page(device, piece->from, piece->from_at, piece->bytes,
					   DMA_TO_DEVICE);
	if (dma_mapping_error(device, channel->sources[i]))
		return false;
	channel->targets[i] = dma_map_page(device, piece->to, piece->to_at, piece->bytes,
					   DMA_FROM_DEVICE);
	if (!dma_mapping_error(device, channel->targets[i]))
		return true;
	dma_unmap_page(device, channel->sources[i], piece->bytes, DMA_TO_DEVICE);
	return false;
}

static void unmap_piece(struct channel *channel, const struct piece *piece, unsigned int i)
{
	struct device *device = device_of(channel);

	dma_unmap_page(device, channel->targets[i], piece->bytes, DMA_FROM_DEVICE);
	dma_unmap_page(device, channel->sources[i], piece->bytes, DMA_TO_DEVICE);
}

/* Hands pieces to the channel until it takes no more; returns how many it took. */
static unsigned int submit_pieces(struct channel *channel, const struct piece *pieces,
				  unsigned int count, dma_cookie_t *cookie)
{
	struct dma_async_tx_descriptor *descriptor;
	unsigned long ticket;
	unsigned int i;

	for (i = 0; i < count; i++) {
		if (!map_piece(channel, &pieces[i], i))
			break;
		descriptor = dmaengine_prep_dma_memcpy(channel->dma, channel->targets[i],
						       channel->sources[i], pieces[i].bytes,
						       DMA_PREP_INTERRUPT | DMA_CTRL_ACK);
		if (!descriptor) {
			unmap_piece(channel, &pieces[i], i);
			break;
		}
		/* Each has a callback: the last one's result need not cover the others. */
		ticket = ticket_of(channel, i);
		WRITE_ONCE(channel->tickets[i], ticket);
		descriptor->callback_result = piece_ended;
		descriptor->callback_param = (void *)ticket;
		atomic_inc(&channel->left);
		*cookie = dmaengine_submit(descriptor);
		if (dma_submit_error(*cookie)) {
			/* idxd calls back even a descriptor that it does not take. */
			if (claim_piece_end(channel, i, ticket))
				atomic_dec(&channel->left);
			unmap_piece(channel, &pieces[i], i);
			break;
		}
	}
	return i;
}

static bool is_same_channel(struct dma_chan *dma, void *wanted)
{
	return dma == wanted;
}

/*
 * Releases the channel and requests it again, which resets the driver's state after a
 * transfer was terminated. Only for drivers that are known to stop the hardware: a release
 * frees descriptors that running hardware would read.
 */
static void request_again(struct channel *channel)
{
	struct dma_chan *dma = channel->dma;
	dma_cap_mask_t mask;

	mutex_lock(&channel->pausing);
	channel->pausable = false;
	mutex_unlock(&channel->pausing);

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	dma_release_channel(dma);
	channel->dma = dma_request_channel(mask, is_same_channel, dma);
	channel->counted.recoveries++;
	if (!channel->dma) {
		pr_err("%s: it hung and could not be requested again; no copy uses it any more\n",
		       channel->counted.name);
		WRITE_ONCE(channel->dead, true);
		return;
	}
	mutex_lock(&channel->pausing);
	channel->pausable = cftu_engine.can_pause;
	if (channel->paused && channel->pausable)
		dmaengine_pause(channel->dma);
	mutex_unlock(&channel->pausing);
}

/*
 * Many providers pause a transfer, not a channel: an idle channel that was paused runs the
 * next transfer. So a transfer is paused again after it has begun.
 */
static void pause_what_began(struct channel *channel)
{
	/* Pairs with cftu_channel_pause(): one of the two sees the other's store. */
	smp_mb();
	if (!READ_ONCE(channel->paused))
		return;
	mutex_lock(&channel->pausing);
	if (channel->paused && channel->pausable)
		dmaengine_pause(channel->dma);
	mutex_unlock(&channel->pausing);
}

/* Waits for the transfer's end. Returns false on timeout. */
static bool wait_for_end(struct channel *channel, unsigned long bytes, dma_cookie_t cookie,
			 u64 timeout_ns)
{
	unsigned long timeout = max(nsecs_to_jiffies(timeout_ns), 1UL);

	if (bytes <= READ_ONCE(cftu_engine.poll_bytes)) {
		u64 until = ktime_get_ns() + POLL_NS;

		while (!completion_done(&channel->ended) && ktime_get_ns() < until) {
			/* Some providers look at the hardware only when asked. */
			dma_async_is_tx_complete(channel->dma, cookie, NULL, NULL);
			cpu_relax();
		}
	}
	/* Uninterruptible: the engine writes to the pages until the end. */
	return wait_for_completion_timeout(&channel->ended, timeout);
}

/*
 * The engine may still access the pages, whatever its driver says. So they stay allocated,
 * and so do the mappings, the channel with its descriptors, and the module, which the
 * driver may call back.
 */
static void abandon_transfer(struct channel *channel, const struct piece *pieces,
			     unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++) {
		get_page(pieces[i].from);
		get_page(pieces[i].to);
	}
	channel->counted.held_pages += 2 * count;
	mutex_lock(&channel->pausing);
	channel->pausable = false;
	mutex_unlock(&channel->pausing);
	WRITE_ONCE(channel->dead, true);
	__module_get(THIS_MODULE);
	pr_err("%s: no copy uses it any more; %u pages stay allocated, and cftu loaded, until the next boot: %s is not known to stop the hardware\n",
	       channel->counted.name, 2 * count, cftu_engine.provider);
}

bool cftu_engine_may_keep(struct page *page)
{
	return cftu_engine.known->stops || (!PageSlab(page) && page_count(page));
}

/*
 * Takes back the tickets of a terminated transfer. A callback that comes later finds none; one
 * under way, which has its ticket, is awaited, so that it does not end the next transfer.
 * Returns true if a descriptor had not ended.
 */
static bool take_tickets(struct channel *channel, unsigned int count)
{
	bool any = false;
	unsigned int i;

	for (i = 0; i < count; i++)
		if (claim_piece_end(channel, i, ticket_of(channel, i))) {
			any = true;
			drop_descriptor(channel);
		}
	wait_for_completion(&channel->ended);
	return any;
}

/* Handles a transfer that has not ended in time. @hung: false if it has ended meanwhile. */
static enum transfer_end time_out(struct channel *channel, const struct piece *pieces,
				  unsigned int count, u64 timeout_ns, bool *hung)
{
	channel->counted.timeouts++;
	pr_warn_ratelimited("%s: a transfer has not ended after %llu ms\n", channel->counted.name,
			    div_u64(timeout_ns, NSEC_PER_MSEC));
	/* Worth trying even if the driver is not known to stop the hardware. */
	if (channel->dma->device->device_terminate_all)
		dmaengine_terminate_sync(channel->dma);
	if (cftu_engine.known->stops) {
		*hung = take_tickets(channel, count);
		return TRANSFER_FAILED;
	}
	abandon_transfer(channel, pieces, count);
	return TRANSFER_LOST;
}

static bool piece_is_equal(const struct piece *piece)
{
	u8 *from = kmap_local_page(piece->from), *to = kmap_local_page(piece->to);
	bool same = !memcmp(from + piece->from_at, to + piece->to_at, piece->bytes);

	kunmap_local(to);
	kunmap_local(from);
	return same;
}

/*
 * True if source and target are equal. A difference means that the engine failed and its
 * driver did not report it, or that the owner changed the memory meanwhile: in that case
 * the CPU's copy is as valid as the engine's.
 */
static bool pieces_are_equal(const struct piece *pieces, unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		if (!piece_is_equal(&pieces[i]))
			return false;
	return true;
}

enum transfer_end cftu_engine_transfer(struct channel *channel, const struct piece *pieces,
				       unsigned int *count, u64 timeout_ns)
{
	unsigned int taken, i, cpu = raw_smp_processor_id();
	enum transfer_end end = TRANSFER_DONE;
	u64 began = ktime_get_ns(), took;
	unsigned long bytes = 0;
	dma_cookie_t cookie = 0;
	bool hung = false;

	reinit_completion(&channel->ended);
	channel->failed = false;
	channel->sequence++;
	atomic_set(&channel->left, 1);
	taken = submit_pieces(channel, pieces, *count, &cookie);
	*count = taken;
	if (!taken)
		return TRANSFER_REFUSED;
	for (i = 0; i < taken; i++)
		bytes += pieces[i].bytes;
	dma_async_issue_pending(channel->dma);
	pause_what_began(channel);
	drop_descriptor(channel);

	if (!wait_for_end(channel, bytes, cookie, timeout_ns)) {
		end = time_out(channel, pieces, taken, timeout_ns, &hung);
	} else if (READ_ONCE(channel->failed)) {
		channel->counted.errors++;
		end = TRANSFER_FAILED;
	}
	if (end != TRANSFER_LOST)
		for (i = 0; i < taken; i++)
			unmap_piece(channel, &pieces[i], i);
	/* After unmapping, which needs the device that the channel has now. */
	if (hung)
		request_again(channel);
	if (end == TRANSFER_DONE && cftu_engine.compares && !pieces_are_equal(pieces, taken)) {
		channel->counted.mismatches++;
		end = TRANSFER_FAILED;
	}

	took = div_u64(ktime_get_ns() - began, taken);
	channel->piece_ns += (s64)(took - channel->piece_ns) >> PIECE_NS_SHIFT;
	channel->counted.transfers++;
	channel->counted.segments += taken;
	if (end == TRANSFER_DONE)
		channel->counted.bytes += bytes;
	if (cpu < 64)
		channel->counted.cpus |= BIT_ULL(cpu);
	return end;
}

void cftu_channel_pause(struct channel *channel, bool pause)
{
	u64 now = ktime_get_ns();

	mutex_lock(&channel->pausing);
	if (channel->paused != pause) {
		WRITE_ONCE(channel->paused, pause);
		/* Pairs with pause_what_began(). */
		smp_mb();
		if (pause)
			channel->paused_since = now;
		else
			channel->counted.paused_ns += now - channel->paused_since;
		if (channel->pausable && pause)
			dmaengine_pause(channel->dma);
		else if (channel->pausable)
			dmaengine_resume(channel->dma);
	}
	mutex_unlock(&channel->pausing);
}

static const char *driver_of(struct dma_chan *dma)
{
	return dma->device->dev->driver ? dma->device->dev->driver->name : "";
}

/* All channels come from one provider: the parameter's, or the first channel's. */
static bool is_wanted(struct dma_chan *dma, void *wanted)
{
	const char *name = wanted;

	/* As much of it as cftu_engine.provider holds. */
	return !*name || !strncmp(driver_of(dma), name, CFTU_NAME_BYTES - 1);
}

/*
 * Measures the longest transfer that is worth polling for: one that ends before a sleeping
 * task would be awake again. The cost of sleeping is the difference between a polled and an
 * awaited transfer of the smallest size, each the best of POLL_TRIALS.
 */
#define POLL_TRIALS 8
/* Generous, since a busy machine at load time does not mean a hanging engine. */
#define TRIAL_TIMEOUT_NS (10 * NSEC_PER_SEC)

static u64 best_ns(struct channel *channel, const struct piece *pieces, unsigned int count,
		   unsigned long poll)
{
	u64 best = U64_MAX;
	int trial;

	WRITE_ONCE(cftu_engine.poll_bytes, poll);
	for (trial = 0; trial < POLL_TRIALS; trial++) {
		u64 began = ktime_get_ns();
		unsigned int taken = count;

		if (cftu_engine_transfer(channel, pieces, &taken, TRIAL_TIMEOUT_NS) !=
		    TRANSFER_DONE)
			return U64_MAX;
		best = min(best, ktime_get_ns() - began);
	}
	return best;
}

static void measure_poll_bytes(void)
{
	struct channel *channel = &cftu_engine.channels[0];
	unsigned long worth = 0, bytes, least = cftu_engine.align;
	u64 polled, slept, sleeping;
	struct piece piece = {};

	piece.from = alloc_page(GFP_KERNEL | __GFP_ZERO);
	piece.to = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!piece.from || !piece.to)
		goto out;
	rt_mutex_lock(&channel->lock);
	piece.bytes = least;
	slept = best_ns(channel, &piece, 1, 0);
	/* After a failure the channel may be dead. */
	polled = slept == U64_MAX ? U64_MAX : best_ns(channel, &piece, 1, ULONG_MAX);
	sleeping = slept > polled ? slept - polled : 0;
	for (bytes = least; sleeping && bytes <= min_t(size_t, PAGE_SIZE, cftu_engine.piece_bytes);
	     bytes *= 2) {
		piece.bytes = bytes;
		if (best_ns(channel, &piece, 1, ULONG_MAX) > polled + sleeping)
			break;
		worth = bytes;
	}
	rt_mutex_unlock(&channel->lock);
out:
	WRITE_ONCE(cftu_engine.poll_bytes, worth);
	if (piece.from)
		__free_page(piece.from);
	if (piece.to)
		__free_page(piece.to);
}

static void channel_init(struct channel *channel, struct dma_chan *dma, unsigned int index)
{
	channel->dma = dma;
	channel->index = index;
	rt_mutex_init(&channel->lock);
	mutex_init(&channel->pausing);
	init_completion(&channel->ended);
	channel->counted.channel = index;
	strscpy(channel->counted.name, dma_chan_name(dma), sizeof(channel->counted.name));
}

/* The engine's limits are those of its strictest channel. */
static void take_limits(struct dma_chan *dma)
{
	struct device *device = dmaengine_get_dma_device(dma);
	bool coherent = dev_is_dma_coherent(device);

	cftu_engine.align = max(cftu_engine.align, 1U << dma->device->copy_align);
	if (!coherent)
		cftu_engine.align = max_t(unsigned int, cftu_engine.align,
					  dma_get_cache_alignment());
	cftu_engine.coherent &= coherent;
	cftu_engine.piece_bytes = min(cftu_engine.piece_bytes, dma_get_max_seg_size(device));
	cftu_engine.can_pause &= dma->device->device_pause && dma->device->device_resume;
}

int cftu_engine_start(void)
{
	unsigned int wanted = channels ?: min(num_possible_cpus(), CFTU_CHANNELS_MAX + 0U);
	dma_cap_mask_t mask;
	unsigned int i;

	if (channels > CFTU_CHANNELS_MAX) {
		pr_err("channels=%u: give at most %u\n", channels, CFTU_CHANNELS_MAX);
		return -EINVAL;
	}
	if (!is_power_of_2(align) || align > SZ_4K) {
		pr_err("align=%u: give a power of 2 from 1 to 4096\n", align);
		return -EINVAL;
	}
	cftu_engine.channels = kcalloc(wanted, sizeof(*cftu_engine.channels), GFP_KERNEL);
	if (!cftu_engine.channels)
		return -ENOMEM;
	cftu_engine.align = align;
	cftu_engine.piece_bytes = PAGE_SIZE;
	cftu_engine.coherent = true;
	cftu_engine.can_pause = true;
	strscpy(cftu_engine.provider, provider, sizeof(cftu_engine.provider));
	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	for (cftu_engine.count = 0; cftu_engine.count < wanted; cftu_engine.count++) {
		struct dma_chan *dma;

		dma = dma_request_channel(mask, is_wanted, cftu_engine.provider);
		if (!dma)
			break;
		if (!cftu_engine.count)
			strscpy(cftu_engine.provider, driver_of(dma), sizeof(cftu_engine.provider));
		channel_init(&cftu_engine.channels[cftu_engine.count], dma, cftu_engine.count);
		take_limits(dma);
	}
	if (!cftu_engine.count || cftu_engine.count < channels) {
		pr_err("channels=%u provider=%s: %u free DMA channels that copy memory; load swdma, or ask for fewer\n",
		       channels, provider, cftu_engine.count);
		cftu_engine_stop();
		return -ENODEV;
	}
	cftu_engine.known = cftu_provider_of(cftu_engine.provider);
	cftu_engine.compares = compare && !cftu_engine.known->reports;
	/* A multiple of the alignment, and at least one. */
	cftu_engine.piece_bytes = max(round_down(cftu_engine.piece_bytes, cftu_engine.align),
				      cftu_engine.align);
	for (i = 0; i < cftu_engine.count; i++)
		cftu_engine.channels[i].pausable = cftu_engine.can_pause;
	return 0;
}

void cftu_engine_measure(void)
{
	if (poll_bytes < 0)
		measure_poll_bytes();
	else
		WRITE_ONCE(cftu_engine.poll_bytes, poll_bytes);
	pr_info("%u channels of %s, aligned to %u bytes, %s; up to %lu bytes are polled for%s\n",
		cftu_engine.count, cftu_engine.provider, cftu_engine.align,
		cftu_engine.can_pause ? "can pause" : "can't pause", cftu_engine.poll_bytes,
		cftu_engine.compares ? "; bytes are compared, as errors may go unreported" : "");
}

bool cftu_engine_has_lost(void)
{
	unsigned int i;

	for (i = 0; i < cftu_engine.count; i++)
		if (cftu_engine.channels[i].counted.held_pages)
			return true;
	return false;
}

void cftu_engine_stop(void)
{
	unsigned int i;

	for (i = 0; i < cftu_engine.count; i++)
		if (cftu_engine.channels[i].dma)
			dma_release_channel(cftu_engine.channels[i].dma);
	cftu_engine.count = 0;
	kfree(cftu_engine.channels);
}
