// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of swdma as a client meets it. They hold one channel, and take the
 * module with whatever parameters it was loaded.
 */
#include <kunit/test.h>
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/prandom.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "faults.h"

#define FLAGS (DMA_CTRL_ACK | DMA_PREP_INTERRUPT)
/* Large enough to be interrupted half-way, small enough to be allocated in one piece. */
#define BUFFER SZ_256K
/* An event that a test waits for comes long before this, or never. */
#define PATIENCE_MS 10000
/* An event that must not happen would have happened by then. */
#define QUIET_MS 50
#define BATCH 16

static unsigned int everything_ms = 500;
module_param(everything_ms, uint, 0444);
MODULE_PARM_DESC(everything_ms, "how long the case with everything at once lasts, ms (500)");

/* One copy, from the client's side. */
struct copy {
	struct fixture *fixture;
	struct completion done;
	struct dmaengine_result result;
	dma_cookie_t cookie;
	int place;
};

struct fixture {
	struct swdma_faults before;
	struct dma_chan *chan;
	struct device *dev;
	u8 *from;
	u8 *to;
	dma_addr_t from_dma;
	dma_addr_t to_dma;
	unsigned int align;
	size_t most;
	/* How many were called back. */
	atomic_t places;
	struct copy copy[BATCH];
};

static bool is_swdma(struct dma_chan *chan, void *param)
{
	return !strcmp(chan->device->dev->driver->name, "swdma");
}

static void fill(struct fixture *f)
{
	struct rnd_state random;

	prandom_seed_state(&random, 1);
	prandom_bytes_state(&random, f->from, BUFFER);
	memset(f->to, 0, BUFFER);
}

static int begin(struct kunit *test)
{
	struct fixture *f = kunit_kzalloc(test, sizeof(*f), GFP_KERNEL);
	dma_cap_mask_t mask;

	KUNIT_ASSERT_NOT_NULL(test, f);
	test->priv = f;
	f->from = kunit_kzalloc(test, BUFFER, GFP_KERNEL);
	f->to = kunit_kzalloc(test, BUFFER, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, f->from);
	KUNIT_ASSERT_NOT_NULL(test, f->to);

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	f->chan = dma_request_channel(mask, is_swdma, NULL);
	KUNIT_ASSERT_NOT_NULL(test, f->chan);
	f->before = swdma_faults;
	swdma_faults = (struct swdma_faults){};
	f->dev = f->chan->device->dev;
	f->align = 1 << f->chan->device->copy_align;
	f->most = min_t(size_t, BUFFER, dma_get_max_seg_size(f->dev));
	f->from_dma = dma_map_single(f->dev, f->from, BUFFER, DMA_TO_DEVICE);
	f->to_dma = dma_map_single(f->dev, f->to, BUFFER, DMA_FROM_DEVICE);
	fill(f);
	return 0;
}

static void end(struct kunit *test)
{
	struct fixture *f = test->priv;

	if (!f || !f->chan)
		return;
	swdma_faults = f->before;
	dmaengine_terminate_sync(f->chan);
	dma_unmap_single(f->dev, f->from_dma, BUFFER, DMA_TO_DEVICE);
	dma_unmap_single(f->dev, f->to_dma, BUFFER, DMA_FROM_DEVICE);
	dma_release_channel(f->chan);
}

static void called_back(void *param, const struct dmaengine_result *result)
{
	struct copy *copy = param;

	copy->result = *result;
	copy->place = atomic_inc_return(&copy->fixture->places);
	complete(&copy->done);
}

/* Submits the @i-th copy, and leaves it to be issued. */
static bool submit(struct fixture *f, int i, size_t to, size_t from, size_t length)
{
	struct dma_async_tx_descriptor *tx;
	struct copy *copy = &f->copy[i];

	tx = dmaengine_prep_dma_memcpy(f->chan, f->to_dma + to, f->from_dma + from, length, FLAGS);
	if (!tx)
		return false;
	*copy = (struct copy){ .fixture = f };
	init_completion(&copy->done);
	tx->callback_result = called_back;
	tx->callback_param = copy;
	copy->cookie = dmaengine_submit(tx);
	return copy->cookie >= DMA_MIN_COOKIE;
}

static bool is_called_back(struct copy *copy)
{
	return wait_for_completion_timeout(&copy->done, msecs_to_jiffies(PATIENCE_MS));
}

static enum dma_status status_of(struct fixture *f, int i, u32 *residue)
{
	struct dma_tx_state state;
	enum dma_status status = dmaengine_tx_status(f->chan, f->copy[i].cookie, &state);

	*residue = state.residue;
	return status;
}

/* Copies and waits. Return: true on success. */
static bool copies(struct fixture *f, size_t to, size_t from, size_t length)
{
	if (!submit(f, 0, to, from, length))
		return false;
	dma_async_issue_pending(f->chan);
	return is_called_back(&f->copy[0]) && f->copy[0].result.result == DMA_TRANS_NOERROR;
}

static size_t longest(struct fixture *f)
{
	return round_down(f->most, f->align);
}

/* The maximum number of descriptors that a test may have in flight. */
static int batch(struct fixture *f)
{
	int n;

	for (n = 0; n < BATCH && dmaengine_prep_dma_memcpy(f->chan, f->to_dma, f->from_dma,
							   f->align, FLAGS); n++)
		;
	dmaengine_terminate_sync(f->chan);
	return n;
}

static void exactly_the_bytes_asked_for_are_copied(struct kunit *test)
{
	static const size_t lengths[] = { 1, 2, 3, 5, 8, 64, 255, 4095, 4096, 4097, 12289 };
	/* CPUs copy by words of 8 bytes; times the device's alignment. */
	static const size_t offsets[] = { 0, 1, 3, 4, 7, 8 };
	struct fixture *f = test->priv;
	size_t length, to, from;
	unsigned int i, j;

	for (i = 0; i < ARRAY_SIZE(lengths); i++) {
		length = min(round_up(lengths[i], f->align), longest(f));
		for (j = 0; j < ARRAY_SIZE(offsets) * ARRAY_SIZE(offsets); j++) {
			to = offsets[j / ARRAY_SIZE(offsets)] * f->align;
			from = offsets[j % ARRAY_SIZE(offsets)] * f->align;
			memset(f->to, 0, to + length + 64);
			KUNIT_ASSERT_TRUE(test, copies(f, to, from, length));
			KUNIT_ASSERT_PTR_EQ(test, memchr_inv(f->to, 0, to), NULL);
			KUNIT_ASSERT_EQ(test, memcmp(f->to + to, f->from + from, length), 0);
			KUNIT_ASSERT_PTR_EQ(test, memchr_inv(f->to + to + length, 0, 64), NULL);
		}
	}
}

static void a_long_copy_is_whole(struct kunit *test)
{
	struct fixture *f = test->priv;
	u32 residue;

	KUNIT_ASSERT_TRUE(test, copies(f, 0, 0, longest(f)));
	KUNIT_EXPECT_EQ(test, memcmp(f->to, f->from, longest(f)), 0);
	KUNIT_EXPECT_EQ(test, f->copy[0].result.residue, 0);
	KUNIT_EXPECT_EQ(test, status_of(f, 0, &residue), DMA_COMPLETE);
	KUNIT_EXPECT_EQ(test, residue, 0);
}

static void callbacks_come_in_the_order_of_submission(struct kunit *test)
{
	struct fixture *f = test->priv;
	int i, n = batch(f);

	KUNIT_ASSERT_GT(test, n, 0);
	for (i = 0; i < n; i++)
		KUNIT_ASSERT_TRUE(test, submit(f, i, 0, 0, f->align));
	dma_async_issue_pending(f->chan);
	for (i = 0; i < n; i++) {
		KUNIT_ASSERT_TRUE(test, is_called_back(&f->copy[i]));
		KUNIT_EXPECT_EQ(test, f->copy[i].place, i + 1);
		KUNIT_EXPECT_EQ(test, f->copy[i].cookie, f->copy[0].cookie + i);
	}
}

static void who_polls_needs_no_callback(struct kunit *test)
{
	struct fixture *f = test->priv;
	struct dma_async_tx_descriptor *tx;
	dma_cookie_t cookie;

	tx = dmaengine_prep_dma_memcpy(f->chan, f->to_dma, f->from_dma, longest(f), DMA_CTRL_ACK);
	KUNIT_ASSERT_NOT_NULL(test, tx);
	cookie = dmaengine_submit(tx);
	KUNIT_EXPECT_EQ(test, dma_sync_wait(f->chan, cookie), DMA_COMPLETE);
	KUNIT_EXPECT_EQ(test, memcmp(f->to, f->from, longest(f)), 0);
}

static void what_is_not_issued_is_not_begun(struct kunit *test)
{
	struct fixture *f = test->priv;
	u32 residue;

	KUNIT_ASSERT_TRUE(test, submit(f, 0, 0, 0, f->align));
	msleep(QUIET_MS);
	KUNIT_EXPECT_EQ(test, status_of(f, 0, &residue), DMA_IN_PROGRESS);
	KUNIT_EXPECT_EQ(test, residue, f->align);
	KUNIT_EXPECT_EQ(test, atomic_read(&f->places), 0);
	dma_async_issue_pending(f->chan);
	KUNIT_EXPECT_TRUE(test, is_called_back(&f->copy[0]));
}

static void a_pause_holds_and_a_resume_finishes(struct kunit *test)
{
	struct fixture *f = test->priv;
	u32 residue;

	KUNIT_EXPECT_EQ(test, dmaengine_pause(f->chan), 0);
	KUNIT_ASSERT_TRUE(test, submit(f, 0, 0, 0, longest(f)));
	dma_async_issue_pending(f->chan);
	msleep(QUIET_MS);
	KUNIT_EXPECT_EQ(test, status_of(f, 0, &residue), DMA_PAUSED);
	KUNIT_EXPECT_EQ(test, residue, longest(f));
	KUNIT_EXPECT_PTR_EQ(test, memchr_inv(f->to, 0, BUFFER), NULL);
	KUNIT_EXPECT_EQ(test, dmaengine_resume(f->chan), 0);
	KUNIT_EXPECT_TRUE(test, is_called_back(&f->copy[0]));
	KUNIT_EXPECT_EQ(test, memcmp(f->to, f->from, longest(f)), 0);
}

static void a_copy_is_paused_within_a_step(struct kunit *test)
{
	struct fixture *f = test->priv;
	u32 before, after, copied;
	int attempt;

	if (longest(f) < BUFFER)
		kunit_skip(test, "descriptors are too short to be met half-way");
	/* It may be over before this thread runs. */
	for (attempt = 0; attempt < 100; attempt++) {
		memset(f->to, 0, BUFFER);
		KUNIT_ASSERT_TRUE(test, submit(f, 0, 0, 0, BUFFER));
		dma_async_issue_pending(f->chan);
		while (status_of(f, 0, &before) == DMA_IN_PROGRESS && before == BUFFER)
			cpu_relax();
		dmaengine_pause(f->chan);
		dmaengine_synchronize(f->chan);
		if (status_of(f, 0, &before) == DMA_PAUSED)
			break;
		dmaengine_resume(f->chan);
		KUNIT_ASSERT_TRUE(test, is_called_back(&f->copy[0]));
	}
	KUNIT_ASSERT_LT(test, attempt, 100);
	copied = BUFFER - before;
	kunit_info(test, "paused after %u of %u bytes", copied, BUFFER);
	KUNIT_EXPECT_GT(test, copied, 0);
	msleep(QUIET_MS);
	KUNIT_EXPECT_EQ(test, status_of(f, 0, &after), DMA_PAUSED);
	KUNIT_EXPECT_EQ(test, after, before);
	KUNIT_EXPECT_EQ(test, memcmp(f->to, f->from, copied), 0);
	KUNIT_EXPECT_PTR_EQ(test, memchr_inv(f->to + copied, 0, BUFFER - copied), NULL);
	dmaengine_resume(f->chan);
	KUNIT_EXPECT_TRUE(test, is_called_back(&f->copy[0]));
	KUNIT_EXPECT_EQ(test, memcmp(f->to, f->from, BUFFER), 0);
}

static void what_is_terminated_is_not_called_back(struct kunit *test)
{
	struct fixture *f = test->priv;
	int i, n = batch(f), called;
	u32 residue;

	KUNIT_ASSERT_GT(test, n, 1);
	swdma_faults.delay_ns = 10 * NSEC_PER_MSEC;
	for (i = 0; i < n - 1; i++)
		KUNIT_ASSERT_TRUE(test, submit(f, i, 0, 0, f->align));
	dma_async_issue_pending(f->chan);
	/* And one that is only submitted, not issued. */
	KUNIT_ASSERT_TRUE(test, submit(f, n - 1, 0, 0, f->align));
	if (n > 2)
		KUNIT_EXPECT_TRUE(test, is_called_back(&f->copy[0]));
	KUNIT_EXPECT_EQ(test, dmaengine_terminate_sync(f->chan), 0);
	called = atomic_read(&f->places);
	KUNIT_EXPECT_LT(test, called, n);
	KUNIT_EXPECT_EQ(test, status_of(f, n - 1, &residue), DMA_ERROR);
	dma_async_issue_pending(f->chan);
	msleep(QUIET_MS + 10 * n);
	KUNIT_EXPECT_EQ(test, atomic_read(&f->places), called);
	swdma_faults.delay_ns = 0;
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, longest(f)));
}

static void a_paused_channel_that_is_terminated_goes_on(struct kunit *test)
{
	struct fixture *f = test->priv;

	dmaengine_pause(f->chan);
	KUNIT_ASSERT_TRUE(test, submit(f, 0, 0, 0, f->align));
	dma_async_issue_pending(f->chan);
	KUNIT_EXPECT_EQ(test, dmaengine_terminate_sync(f->chan), 0);
	KUNIT_EXPECT_EQ(test, atomic_read(&f->places), 0);
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, f->align));
}

static void what_is_prepared_and_terminated_cannot_be_submitted(struct kunit *test)
{
	struct fixture *f = test->priv;
	struct dma_async_tx_descriptor *tx;

	tx = dmaengine_prep_dma_memcpy(f->chan, f->to_dma, f->from_dma, f->align, FLAGS);
	KUNIT_ASSERT_NOT_NULL(test, tx);
	dmaengine_terminate_sync(f->chan);
	KUNIT_EXPECT_TRUE(test, dma_submit_error(dmaengine_submit(tx)));
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, f->align));
}

static void descriptors_run_out_and_come_back(struct kunit *test)
{
	struct fixture *f = test->priv;
	int round, n[2] = {};

	for (round = 0; round < 2; round++) {
		while (dmaengine_prep_dma_memcpy(f->chan, f->to_dma, f->from_dma, f->align, FLAGS))
			n[round]++;
		KUNIT_EXPECT_EQ(test, dmaengine_terminate_sync(f->chan), 0);
	}
	KUNIT_EXPECT_GT(test, n[0], 0);
	KUNIT_EXPECT_EQ(test, n[0], n[1]);
}

static void what_the_device_cannot_do_is_refused(struct kunit *test)
{
	struct fixture *f = test->priv;
	size_t most = dma_get_max_seg_size(f->dev);

	KUNIT_EXPECT_FALSE(test, submit(f, 0, 0, 0, 0));
	KUNIT_EXPECT_FALSE(test, submit(f, 0, 0, 0, most + 1));
	KUNIT_EXPECT_FALSE(test, submit(f, 0, 0, 0, SIZE_MAX & ~(size_t)(f->align - 1)));
	if (f->align > 1) {
		KUNIT_EXPECT_FALSE(test, submit(f, 0, 1, 0, f->align));
		KUNIT_EXPECT_FALSE(test, submit(f, 0, 0, 1, f->align));
		KUNIT_EXPECT_FALSE(test, submit(f, 0, 0, 0, f->align + 1));
	}
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, longest(f)));
}

static void what_is_no_memory_is_an_error(struct kunit *test)
{
	struct fixture *f = test->priv;
	/* The last page of all. */
	dma_addr_t nowhere = ~(dma_addr_t)0 << 12;
	u32 residue;

	KUNIT_ASSERT_TRUE(test, submit(f, 0, 0, nowhere - f->from_dma, f->align));
	KUNIT_ASSERT_TRUE(test, submit(f, 1, nowhere - f->to_dma, 0, f->align));
	dma_async_issue_pending(f->chan);
	KUNIT_EXPECT_TRUE(test, is_called_back(&f->copy[0]));
	KUNIT_EXPECT_TRUE(test, is_called_back(&f->copy[1]));
	KUNIT_EXPECT_EQ(test, f->copy[0].result.result, DMA_TRANS_READ_FAILED);
	KUNIT_EXPECT_EQ(test, f->copy[1].result.result, DMA_TRANS_WRITE_FAILED);
	KUNIT_EXPECT_EQ(test, f->copy[0].result.residue, f->align);
	KUNIT_EXPECT_EQ(test, status_of(f, 0, &residue), DMA_ERROR);
	KUNIT_EXPECT_EQ(test, status_of(f, 1, &residue), DMA_ERROR);
	/* The range would wrap around. */
	KUNIT_EXPECT_FALSE(test, submit(f, 0, 0, nowhere - f->from_dma, SZ_8K));
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, f->align));
}

static void every_nth_fails_and_no_other(struct kunit *test)
{
	struct fixture *f = test->priv;
	u32 residue, half, length = min_t(size_t, longest(f), 10000 * f->align);
	int i, n = batch(f);
	bool fails;

	half = length / 2;
	/* A channel counts from its request on; the batch has not begun. */
	swdma_faults.fail_every = 3;
	for (i = 0; i < n; i++) {
		memset(f->to, 0, length);
		KUNIT_ASSERT_TRUE(test, submit(f, i, 0, 0, length));
		dma_async_issue_pending(f->chan);
		KUNIT_ASSERT_TRUE(test, is_called_back(&f->copy[i]));
		fails = (i + 1) % 3 == 0;
		KUNIT_EXPECT_EQ(test, f->copy[i].result.result,
				fails ? DMA_TRANS_ABORTED : DMA_TRANS_NOERROR);
		KUNIT_EXPECT_EQ(test, f->copy[i].result.residue, fails ? length - half : 0);
		KUNIT_EXPECT_EQ(test, status_of(f, i, &residue), fails ? DMA_ERROR : DMA_COMPLETE);
		KUNIT_EXPECT_EQ(test, memcmp(f->to, f->from, fails ? half : length), 0);
		KUNIT_EXPECT_PTR_EQ(test, memchr_inv(f->to + half, 0, fails ? length - half : 0),
				    NULL);
	}
}

static void what_hangs_is_ended_by_terminate(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned long until = jiffies + msecs_to_jiffies(PATIENCE_MS);
	u32 residue, length = 2 * f->align;

	if (batch(f) < 3)
		kunit_skip(test, "there are too few descriptors");
	swdma_faults.hang = 2;
	KUNIT_ASSERT_TRUE(test, submit(f, 0, 0, 0, length));
	KUNIT_ASSERT_TRUE(test, submit(f, 1, 0, 0, length));
	KUNIT_ASSERT_TRUE(test, submit(f, 2, 0, 0, length));
	dma_async_issue_pending(f->chan);
	KUNIT_EXPECT_TRUE(test, is_called_back(&f->copy[0]));
	/* It stops half-way, and clearing the fault does not help. */
	while (status_of(f, 1, &residue) == DMA_IN_PROGRESS && residue == length &&
	       time_before(jiffies, until))
		usleep_range(100, 1000);
	swdma_faults.hang = 0;
	msleep(QUIET_MS);
	KUNIT_EXPECT_EQ(test, status_of(f, 1, &residue), DMA_IN_PROGRESS);
	KUNIT_EXPECT_EQ(test, residue, length / 2);
	KUNIT_EXPECT_EQ(test, status_of(f, 2, &residue), DMA_IN_PROGRESS);
	KUNIT_EXPECT_EQ(test, dmaengine_terminate_sync(f->chan), 0);
	KUNIT_EXPECT_EQ(test, atomic_read(&f->places), 1);
	KUNIT_EXPECT_EQ(test, status_of(f, 1, &residue), DMA_ERROR);
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, longest(f)));
}

static void a_silent_failure_is_told_as_success(struct kunit *test)
{
	struct fixture *f = test->priv;
	u32 residue, half = f->align, length = 2 * half;
	int i;

	swdma_faults.fail_silent = 2;
	for (i = 0; i < 2; i++) {
		memset(f->to, 0, length);
		KUNIT_ASSERT_TRUE(test, copies(f, 0, 0, length));
		KUNIT_EXPECT_EQ(test, f->copy[0].result.residue, 0);
		KUNIT_EXPECT_EQ(test, status_of(f, 0, &residue), DMA_COMPLETE);
		KUNIT_EXPECT_EQ(test, memcmp(f->to, f->from, i ? half : length), 0);
		KUNIT_EXPECT_PTR_EQ(test, memchr_inv(f->to + half, 0, i ? half : 0), NULL);
	}
}

static void what_runs_away_is_written_after_terminate(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned long until = jiffies + msecs_to_jiffies(PATIENCE_MS);
	u32 residue, half = f->align, length = 2 * half;

	swdma_faults.runaway = 1;
	KUNIT_ASSERT_TRUE(test, submit(f, 0, 0, 0, length));
	dma_async_issue_pending(f->chan);
	while (status_of(f, 0, &residue) == DMA_IN_PROGRESS && residue == length &&
	       time_before(jiffies, until))
		usleep_range(100, 1000);
	swdma_faults.runaway = 0;
	KUNIT_EXPECT_EQ(test, dmaengine_terminate_sync(f->chan), 0);
	KUNIT_EXPECT_EQ(test, status_of(f, 0, &residue), DMA_ERROR);
	memset(f->to, 0, length);
	while (memcmp(f->to + half, f->from + half, half) && time_before(jiffies, until))
		usleep_range(1000, 10000);
	KUNIT_EXPECT_EQ(test, memcmp(f->to + half, f->from + half, half), 0);
	KUNIT_EXPECT_PTR_EQ(test, memchr_inv(f->to, 0, half), NULL);
	KUNIT_EXPECT_EQ(test, atomic_read(&f->places), 0);
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, length));
}

static void what_is_late_is_called_back_after_terminate(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned long until = jiffies + msecs_to_jiffies(PATIENCE_MS);
	u32 residue, half = f->align, length = 2 * half;

	swdma_faults.late = 1;
	KUNIT_ASSERT_TRUE(test, submit(f, 0, 0, 0, length));
	dma_async_issue_pending(f->chan);
	while (status_of(f, 0, &residue) == DMA_IN_PROGRESS && residue == length &&
	       time_before(jiffies, until))
		usleep_range(100, 1000);
	swdma_faults.late = 0;
	KUNIT_EXPECT_EQ(test, dmaengine_terminate_sync(f->chan), 0);
	KUNIT_EXPECT_EQ(test, status_of(f, 0, &residue), DMA_ERROR);
	while (!atomic_read(&f->places) && time_before(jiffies, until))
		usleep_range(1000, 10000);
	KUNIT_EXPECT_EQ(test, atomic_read(&f->places), 1);
	KUNIT_EXPECT_EQ(test, f->copy[0].result.result, DMA_TRANS_NOERROR);
	KUNIT_EXPECT_PTR_EQ(test, memchr_inv(f->to + half, 0, half), NULL);
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, length));
}

static void a_submission_that_fails_is_called_back_too(struct kunit *test)
{
	struct fixture *f = test->priv;

	swdma_faults.submit_fails = 2;
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, f->align));
	KUNIT_EXPECT_FALSE(test, submit(f, 0, 0, 0, f->align));
	KUNIT_EXPECT_EQ(test, atomic_read(&f->places), 2);
	KUNIT_EXPECT_EQ(test, f->copy[0].result.result, DMA_TRANS_ABORTED);
	swdma_faults.submit_fails = 0;
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, f->align));
}

static void a_callback_may_come_twice(struct kunit *test)
{
	struct fixture *f = test->priv;

	swdma_faults.twice = 2;
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, f->align));
	dmaengine_synchronize(f->chan);
	KUNIT_EXPECT_EQ(test, atomic_read(&f->places), 1);
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, f->align));
	dmaengine_synchronize(f->chan);
	KUNIT_EXPECT_EQ(test, atomic_read(&f->places), 3);
}

static void a_delay_is_kept_and_ended_by_terminate(struct kunit *test)
{
	struct fixture *f = test->priv;
	ktime_t start = ktime_get();

	swdma_faults.delay_ns = 20 * NSEC_PER_MSEC;
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, f->align));
	KUNIT_EXPECT_GE(test, ktime_ms_delta(ktime_get(), start), 20);

	swdma_faults.delay_ns = 4 * NSEC_PER_SEC;
	KUNIT_ASSERT_TRUE(test, submit(f, 0, 0, 0, f->align));
	dma_async_issue_pending(f->chan);
	msleep(QUIET_MS);
	KUNIT_EXPECT_EQ(test, dmaengine_terminate_sync(f->chan), 0);
	swdma_faults.delay_ns = 0;
	start = ktime_get();
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, f->align));
	KUNIT_EXPECT_LT(test, ktime_ms_delta(ktime_get(), start), 3000);
}

/* A callback that starts the next copy, until there are enough. */
struct chain {
	struct fixture *fixture;
	struct completion done;
	int left;
	bool refused;
};

static void link_chain(void *param)
{
	struct chain *chain = param;
	struct fixture *f = chain->fixture;
	struct dma_async_tx_descriptor *tx;

	if (!chain->left--) {
		complete(&chain->done);
		return;
	}
	tx = dmaengine_prep_dma_memcpy(f->chan, f->to_dma, f->from_dma, f->align, FLAGS);
	if (!tx) {
		chain->refused = true;
		complete(&chain->done);
		return;
	}
	tx->callback = link_chain;
	tx->callback_param = chain;
	dmaengine_submit(tx);
	dma_async_issue_pending(f->chan);
}

static void a_callback_may_submit(struct kunit *test)
{
	struct chain chain = { .fixture = test->priv, .left = 1000 };

	init_completion(&chain.done);
	link_chain(&chain);
	KUNIT_EXPECT_TRUE(test, wait_for_completion_timeout(&chain.done,
							    msecs_to_jiffies(PATIENCE_MS)));
	KUNIT_EXPECT_FALSE(test, chain.refused);
	KUNIT_EXPECT_EQ(test, chain.left, -1);
	dmaengine_terminate_sync(chain.fixture->chan);
}

/* A client's mappings are undone however the copy ends. */
static void mappings_are_given_back(struct kunit *test)
{
	struct fixture *f = test->priv;
	struct dma_async_tx_descriptor *tx;
	struct dmaengine_unmap_data *unmap;
	bool terminated;
	int i;

	for (i = 0; i < 2; i++) {
		terminated = i;
		unmap = dmaengine_get_unmap_data(f->dev, 2, GFP_KERNEL);
		KUNIT_ASSERT_NOT_NULL(test, unmap);
		swdma_faults.hang = terminated;
		tx = dmaengine_prep_dma_memcpy(f->chan, f->to_dma, f->from_dma, f->align, FLAGS);
		KUNIT_ASSERT_NOT_NULL(test, tx);
		dma_set_unmap(tx, unmap);
		KUNIT_EXPECT_EQ(test, kref_read(&unmap->kref), 2);
		dmaengine_submit(tx);
		dma_async_issue_pending(f->chan);
		if (terminated) {
			msleep(QUIET_MS);
			KUNIT_EXPECT_EQ(test, kref_read(&unmap->kref), 2);
		} else {
			KUNIT_EXPECT_EQ(test, dma_sync_wait(f->chan, tx->cookie), DMA_COMPLETE);
		}
		dmaengine_terminate_sync(f->chan);
		KUNIT_EXPECT_EQ(test, kref_read(&unmap->kref), 1);
		dmaengine_unmap_put(unmap);
	}
}

static int disturb(void *data)
{
	struct fixture *f = data;
	struct rnd_state random;

	prandom_seed_state(&random, 2);
	while (!kthread_should_stop()) {
		switch (prandom_u32_state(&random) % 8) {
		case 0:
			dmaengine_terminate_async(f->chan);
			break;
		case 1:
			dmaengine_terminate_sync(f->chan);
			break;
		case 2:
			dmaengine_synchronize(f->chan);
			break;
		case 3:
		case 4:
			dmaengine_pause(f->chan);
			break;
		default:
			dmaengine_resume(f->chan);
		}
		usleep_range(50, 500);
	}
	return 0;
}

static void counted(void *param)
{
	atomic_inc(param);
}

static void everything_at_once_leaves_a_channel_that_works(struct kunit *test)
{
	struct fixture *f = test->priv;
	struct dma_async_tx_descriptor *tx;
	struct task_struct *thread;
	struct rnd_state random;
	unsigned long until = jiffies + msecs_to_jiffies(everything_ms);
	int submitted = 0, called, n = batch(f);

	swdma_faults = (struct swdma_faults){ .fail_every = 5, .hang = 97, .delay_ns = 100 };
	thread = kthread_run(disturb, f, "swdma-disturb");
	KUNIT_ASSERT_FALSE(test, IS_ERR(thread));
	prandom_seed_state(&random, 3);
	while (time_before(jiffies, until)) {
		size_t length = prandom_u32_state(&random) % min_t(size_t, longest(f), SZ_64K);

		tx = dmaengine_prep_dma_memcpy(f->chan, f->to_dma, f->from_dma,
					       round_up(length + 1, f->align), FLAGS);
		if (!tx) {
			usleep_range(10, 100);
			continue;
		}
		tx->callback = counted;
		tx->callback_param = &f->places;
		submitted += !dma_submit_error(dmaengine_submit(tx));
		if (prandom_u32_state(&random) % 4)
			dma_async_issue_pending(f->chan);
		cond_resched();
	}
	kthread_stop(thread);
	dmaengine_terminate_sync(f->chan);
	called = atomic_read(&f->places);
	kunit_info(test, "%d of %d called back", called, submitted);
	KUNIT_EXPECT_GT(test, called, 0);
	KUNIT_EXPECT_LE(test, called, submitted);
	swdma_faults = (struct swdma_faults){};
	KUNIT_EXPECT_EQ(test, batch(f), n);
	KUNIT_EXPECT_TRUE(test, copies(f, 0, 0, longest(f)));
	KUNIT_EXPECT_EQ(test, memcmp(f->to, f->from, longest(f)), 0);
	KUNIT_EXPECT_EQ(test, atomic_read(&f->places), called + 1);
}

static struct kunit_case cases[] = {
	KUNIT_CASE(exactly_the_bytes_asked_for_are_copied),
	KUNIT_CASE(a_long_copy_is_whole),
	KUNIT_CASE(callbacks_come_in_the_order_of_submission),
	KUNIT_CASE(who_polls_needs_no_callback),
	KUNIT_CASE(what_is_not_issued_is_not_begun),
	KUNIT_CASE(a_pause_holds_and_a_resume_finishes),
	KUNIT_CASE(a_copy_is_paused_within_a_step),
	KUNIT_CASE(what_is_terminated_is_not_called_back),
	KUNIT_CASE(a_paused_channel_that_is_terminated_goes_on),
	KUNIT_CASE(what_is_prepared_and_terminated_cannot_be_submitted),
	KUNIT_CASE(descriptors_run_out_and_come_back),
	KUNIT_CASE(what_the_device_cannot_do_is_refused),
	KUNIT_CASE(what_is_no_memory_is_an_error),
	KUNIT_CASE(every_nth_fails_and_no_other),
	KUNIT_CASE(what_hangs_is_ended_by_terminate),
	KUNIT_CASE(a_silent_failure_is_told_as_success),
	KUNIT_CASE(what_runs_away_is_written_after_terminate),
	KUNIT_CASE(what_is_late_is_called_back_after_terminate),
	KUNIT_CASE(a_submission_that_fails_is_called_back_too),
	KUNIT_CASE(a_callback_may_come_twice),
	KUNIT_CASE(a_delay_is_kept_and_ended_by_terminate),
	KUNIT_CASE(a_callback_may_submit),
	KUNIT_CASE(mappings_are_given_back),
	KUNIT_CASE(everything_at_once_leaves_a_channel_that_works),
	{}
};

static struct kunit_suite suite = {
	.name = "swdma",
	.init = begin,
	.exit = end,
	.test_cases = cases,
};

kunit_test_suite(suite);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("KUnit tests of swdma");
MODULE_AUTHOR("The memwarden authors");
