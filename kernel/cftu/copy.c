// SPDX-License-Identifier: GPL-2.0-only
/*
 * Copies between user and kernel memory, cut into what a channel takes.
 *
 * A copy goes in parts of 64 KiB. A part's user memory is held over the part's transfers if
 * all of it is present. Otherwise the CPU copies the part, and the result, down to the byte
 * at which it stops, is that of copy_from_user(). No memory is held during a page fault or
 * a wait for mmap_lock, since another process may decide how long that takes (FUSE,
 * userfaultfd). Held memory can be copied whatever happens to the mapping: by the engine,
 * or, if it can't or fails, by CPU through the same pages.
 *
 * A fatal signal ends a copy between two of its transfers, or rounds of the CPU: the rest is
 * not copied. A transfer itself is awaited, since the engine writes until its end.
 */
#include <linux/highmem.h>
#include <linux/kasan-checks.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/overflow.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "channel.h"
#include "compat.h"
#include "copy.h"
#include "flush.h"
#include "hold.h"
#include "kernel-copies.h"
#include "policy.h"

/* Shorter copies for the kernel and other modules go by CPU. */
static unsigned long min_bytes;

static int min_bytes_set(const char *text, const struct kernel_param *parameter)
{
	unsigned long value;
	int err = kstrtoul(text, 0, &value);

	if (err)
		return err;
	WRITE_ONCE(min_bytes, value);
	*(bool *)parameter->arg = true;
	cftu_kernel_copies_min_bytes(value);
	return 0;
}

static int min_bytes_get(char *text, const struct kernel_param *parameter)
{
	return sysfs_emit(text, "%lu\n", READ_ONCE(min_bytes));
}

static const struct kernel_param_ops min_bytes_operations = {
	.set = min_bytes_set,
	.get = min_bytes_get,
};

static bool min_bytes_given;
module_param_cb(min_bytes, &min_bytes_operations, &min_bytes_given, 0644);
MODULE_PARM_DESC(min_bytes, "shorter copies of others go by CPU (default: measured at load; memwarden copy breakeven measures more)");

/*
 * Memory held at a time, and the most in one transfer. A multiple of the 64 bytes that the CPU's
 * functions copy in one round, so that a copy that continues here stops at the same byte as one
 * from the start.
 */
#define PART_BYTES SZ_64K
/* One more, since the first and the last page may be partial. */
#define PART_PAGES (PART_BYTES / PAGE_SIZE + 1)

/* Bytes that the CPU copies or flushes between two calls of cond_resched(). */
#define ROUND_BYTES SZ_1M
#define ROUND_PAGES (ROUND_BYTES / PAGE_SIZE)

struct cftu_pinned {
	struct page **pages;
	unsigned long count;
	unsigned long address;
	size_t bytes;
	struct mm_struct *mm;
	bool writable;
};

/* Per CPU, so that concurrent copies share no cache line; readers sum them up. */
static DEFINE_PER_CPU(struct cftu_statistics, counted);

#define COUNT(field, bytes) this_cpu_add(counted.field, bytes)

void cftu_copy_statistics(struct cftu_statistics *sum)
{
	const struct cftu_statistics *part;
	unsigned int i;
	int cpu;

	memset(sum, 0, sizeof(*sum));
	for (i = 0; i < cftu_engine.count; i++) {
		/* A sample of a running count: a race is harmless. */
		sum->mismatches += data_race(cftu_engine.channels[i].counted.mismatches);
		/* A sample, too. */
		sum->held_pages += data_race(cftu_engine.channels[i].counted.held_pages);
	}
	for_each_possible_cpu(cpu) {
		part = per_cpu_ptr(&counted, cpu);
		sum->copies += part->copies;
		sum->engine_bytes += part->engine_bytes;
		sum->cpu_bytes += part->cpu_bytes;
		sum->asked_bytes += part->asked_bytes;
		sum->off_bytes += part->off_bytes;
		sum->small_bytes += part->small_bytes;
		sum->context_bytes += part->context_bytes;
		sum->unpinned_bytes += part->unpinned_bytes;
		sum->aligned_bytes += part->aligned_bytes;
		sum->refused_bytes += part->refused_bytes;
		sum->failed_bytes += part->failed_bytes;
		sum->kernel_copies += part->kernel_copies;
		sum->kernel_engine_bytes += part->kernel_engine_bytes;
	}
	sum->policies = cftu_policy_times();
}

unsigned long cftu_copy_min_bytes(void)
{
	return READ_ONCE(min_bytes);
}

/*
 * copy_from_user() and copy_to_user() of an unpatched kernel, which call no engine. The
 * _inatomic forms copy and may fault like the others.
 */
static unsigned long cpu_copy(void *kernel, unsigned long user, unsigned long bytes,
			      enum cftu_direction direction)
{
	unsigned long left = bytes;

	COUNT(cpu_bytes, bytes);
	if (access_ok((void __user *)user, bytes)) {
		barrier_nospec();
		left = direction == CFTU_FROM_USER ?
			       __copy_from_user_inatomic(kernel, (void __user *)user, bytes) :
			       __copy_to_user_inatomic((void __user *)user, kernel, bytes);
	}
	if (direction == CFTU_FROM_USER)
		memset(kernel + bytes - left, 0, left);
	return left;
}

void cftu_clear(void *memory, size_t bytes)
{
	size_t done, part;

	for (done = 0; done < bytes; done += part) {
		part = min_t(size_t, bytes - done, ROUND_BYTES);
		memset(memory + done, 0, part);
		cond_resched();
	}
}

/* Ends a copy after @done bytes: clears the rest. Returns the bytes that were not copied. */
static unsigned long end_copy(void *kernel, unsigned long done, unsigned long bytes,
			      enum cftu_direction direction)
{
	if (direction == CFTU_FROM_USER)
		cftu_clear(kernel + done, bytes - done);
	return bytes - done;
}

/* cpu_copy() for a caller that may sleep, until a fatal signal. */
static unsigned long cpu_copy_in_rounds(void *kernel, unsigned long user, unsigned long bytes,
					enum cftu_direction direction)
{
	unsigned long done, part, left;

	for (done = 0; done < bytes && !fatal_signal_pending(current); done += part) {
		part = min_t(unsigned long, bytes - done, ROUND_BYTES);
		left = cpu_copy(kernel + done, user + done, part, direction);
		if (left)
			return end_copy(kernel, done + part - left, bytes, direction);
		cond_resched();
	}
	return end_copy(kernel, done, bytes, direction);
}

/*
 * struct span - a part of a copy whose user pages are held
 * @kernel: the next byte
 * @pages: held, from that of the next byte on
 * @at: offset in pages[0]
 * @bytes: left
 */
struct span {
	u8 *kernel;
	struct page **pages;
	unsigned int at;
	size_t bytes;
	enum cftu_direction direction;
	struct copied *copied;
};

static void advance(struct span *span, size_t bytes)
{
	span->kernel += bytes;
	span->bytes -= bytes;
	span->at += bytes;
	span->pages += span->at / PAGE_SIZE;
	span->at %= PAGE_SIZE;
}

/* Copies the span's next @bytes by CPU, until a fatal signal. Returns how many it copied. */
static size_t span_by_cpu(struct span *span, size_t bytes)
{
	size_t done, part;

	for (done = 0; done < bytes && !fatal_signal_pending(current); done += part) {
		part = min_t(size_t, bytes - done, PAGE_SIZE - span->at);
		if (span->direction == CFTU_FROM_USER)
			memcpy_from_page(span->kernel, *span->pages, span->at, part);
		else
			memcpy_to_page(*span->pages, span->at, span->kernel, part);
		advance(span, part);
		cond_resched();
	}
	COUNT(cpu_bytes, done);
	return done;
}

/* Returns the page of kernel memory, or NULL where there is no such page. */
static struct page *page_of(const void *kernel)
{
	unsigned long pfn;

	if (!is_vmalloc_addr(kernel))
		return virt_addr_valid(kernel) ? virt_to_page(kernel) : NULL;
	if (!vmalloc_to_page(kernel))
		return NULL;
	pfn = vmalloc_to_pfn(kernel);
	return pfn_valid(pfn) ? pfn_to_page(pfn) : NULL;
}

/*
 * For other callers the engine copies memory in the kernel's linear map only, which is
 * cached. Other mappings, such as device memory, may be uncached, and an engine that snoops
 * the caches could find stale lines of it there.
 */
static bool engine_may_touch(const void *kernel)
{
	return !is_vmalloc_addr(kernel) && virt_addr_valid(kernel) &&
	       cftu_engine_may_keep(virt_to_page(kernel));
}

/* Bytes from the span's start that lie in one page on both sides. */
static unsigned int whole_piece(const struct span *span)
{
	size_t bytes = min_t(size_t, span->bytes, cftu_engine.piece_bytes);

	bytes = min_t(size_t, bytes, PAGE_SIZE - span->at);
	return min_t(size_t, bytes, PAGE_SIZE - offset_in_page(span->kernel));
}

/*
 * Returns the bytes that the CPU must copy before the engine can go on: up to the first
 * aligned byte; all of them if the two sides are aligned differently; else 0.
 */
static size_t bytes_before_aligned(const struct span *span)
{
	unsigned int mask = cftu_engine.align - 1;
	size_t head = -span->at & mask;

	if ((span->at ^ offset_in_page(span->kernel)) & mask)
		return span->bytes;
	if (head)
		return min(head, span->bytes);
	return span->bytes <= mask ? span->bytes : 0;
}

/*
 * Fills @pieces from the span, which stays where it is: up to PART_BYTES, also of a span of
 * pinned memory, which is longer. Returns their number.
 */
static unsigned int cut_pieces(const struct span *span, struct piece *pieces, unsigned int most)
{
	struct span rest = *span;
	unsigned int count;

	rest.bytes = min_t(size_t, rest.bytes, PART_BYTES);
	for (count = 0; count < most && rest.bytes; count++) {
		struct piece *piece = &pieces[count];
		struct page *kernel = page_of(rest.kernel);
		unsigned int bytes = whole_piece(&rest) & ~(cftu_engine.align - 1);

		if (!kernel || !bytes || !cftu_engine_may_keep(kernel))
			break;
		piece->bytes = bytes;
		if (rest.direction == CFTU_FROM_USER) {
			piece->from = *rest.pages;
			piece->from_at = rest.at;
			piece->to = kernel;
			piece->to_at = offset_in_page(rest.kernel);
		} else {
			piece->from = kernel;
			piece->from_at = offset_in_page(rest.kernel);
			piece->to = *rest.pages;
			piece->to_at = rest.at;
		}
		advance(&rest, bytes);
	}
	return count;
}

static size_t sum_of(const struct piece *pieces, unsigned int count)
{
	size_t bytes = 0;
	unsigned int i;

	for (i = 0; i < count; i++)
		bytes += pieces[i].bytes;
	return bytes;
}

/* Copies the unaligned head by CPU, or else makes one transfer; nothing after a fatal signal. */
static void span_step(struct span *span)
{
	struct piece pieces[TRANSFER_PIECES];
	size_t bytes = bytes_before_aligned(span);
	enum transfer_end end;
	struct claim claim;
	unsigned int count;
	u32 channel;

	if (bytes) {
		bytes = span_by_cpu(span, bytes);
		COUNT(aligned_bytes, bytes);
		return;
	}
	if (cftu_policy_claim(&claim))
		return;
	if (!claim.channel) {
		cftu_policy_release(&claim);
		bytes = span_by_cpu(span, span->bytes);
		COUNT(off_bytes, bytes);
		return;
	}
	channel = claim.channel->index;
	count = cut_pieces(span, pieces, claim.pieces);
	if (!count) {
		/* No kernel page that the engine may touch. */
		cftu_policy_release(&claim);
		bytes = span_by_cpu(span, span->bytes);
		COUNT(unpinned_bytes, bytes);
		return;
	}
	bytes = pieces[0].bytes;
	end = cftu_engine_transfer(claim.channel, pieces, &count, claim.timeout_ns);
	cftu_policy_release(&claim);
	if (end != TRANSFER_REFUSED)
		bytes = sum_of(pieces, count);
	switch (end) {
	case TRANSFER_DONE:
		advance(span, bytes);
		span->copied->engine_bytes += bytes;
		span->copied->channel = channel;
		COUNT(engine_bytes, bytes);
		break;
	case TRANSFER_REFUSED:
		bytes = span_by_cpu(span, bytes);
		COUNT(refused_bytes, bytes);
		break;
	case TRANSFER_FAILED:
	case TRANSFER_LOST:
		bytes = span_by_cpu(span, bytes);
		COUNT(failed_bytes, bytes);
		break;
	}
}

/* Copies the span, until a fatal signal. Returns how many bytes. */
static size_t span_copy(struct span *span)
{
	/* For architectures whose caches know a page by its virtual address. */
	u8 *kernel = span->kernel;
	size_t bytes = span->bytes;

	if (is_vmalloc_addr(kernel))
		flush_kernel_vmap_range(kernel, bytes);
	while (span->bytes && !fatal_signal_pending(current))
		span_step(span);
	if (is_vmalloc_addr(kernel) && span->direction == CFTU_FROM_USER)
		invalidate_kernel_vmap_range(kernel, bytes);
	return bytes - span->bytes;
}

/* True if this task may sleep here and has user memory. */
static bool may_wait(void)
{
	return !in_atomic() && !irqs_disabled() && !pagefault_disabled() && current->mm;
}

/*
 * Copies a part, by the engine where it can. Returns how many bytes: 0 if its user memory is
 * not all present or may not be held, and fewer than @bytes after a fatal signal.
 */
static size_t copy_part(void *kernel, unsigned long user, size_t bytes,
			enum cftu_direction direction, struct copied *copied)
{
	bool write = direction == CFTU_TO_USER;
	struct page *pages[PART_PAGES];
	struct span span = {
		.kernel = kernel,
		.pages = pages,
		.at = offset_in_page(user),
		.bytes = bytes,
		.direction = direction,
		.copied = copied,
	};
	unsigned int count = DIV_ROUND_UP(span.at + bytes, PAGE_SIZE);

	if (!cftu_hold_pages(user, count, write, pages))
		return 0;
	bytes = span_copy(&span);
	cftu_release_pages(pages, count, write);
	return bytes;
}

/* Copies parts until copy_part() does not copy all of one. Returns the bytes copied. */
static unsigned long copy_parts(void *kernel, unsigned long user, unsigned long bytes,
				enum cftu_direction direction, struct copied *copied)
{
	unsigned long done, part, of_part;

	for (done = 0; done < bytes; done += part) {
		part = min_t(unsigned long, bytes - done, PART_BYTES);
		of_part = copy_part(kernel + done, user + done, part, direction, copied);
		if (of_part < part)
			return done + of_part;
		cond_resched();
	}
	return done;
}

unsigned long cftu_copy_user(void *kernel, unsigned long user, unsigned long bytes,
			     enum cftu_direction direction, struct copied *copied)
{
	bool write = direction == CFTU_TO_USER;
	unsigned long done, part, left;

	copied->engine_bytes = 0;
	copied->channel = CFTU_NO_CHANNEL;
	COUNT(copies, 1);
	if (!may_wait()) {
		COUNT(context_bytes, bytes);
		return cpu_copy(kernel, user, bytes, direction);
	}
	/* The checks for overruns that copy_from_user() makes. */
	might_fault();
	check_object_size(kernel, bytes, write);
	if (write)
		kasan_check_read(kernel, bytes);
	else
		kasan_check_write(kernel, bytes);
	if (!page_of(kernel) || !access_ok((void __user *)user, bytes)) {
		COUNT(unpinned_bytes, bytes);
		return cpu_copy_in_rounds(kernel, user, bytes, direction);
	}
	for (done = 0;; done += part) {
		cond_resched();
		done += copy_parts(kernel + done, user + done, bytes - done, direction, copied);
		if (done == bytes)
			return 0;
		if (fatal_signal_pending(current))
			return end_copy(kernel, done, bytes, direction);
		/* The CPU's copy fetches missing pages, or fails like copy_from_user(). */
		part = min_t(unsigned long, bytes - done, PART_BYTES);
		COUNT(unpinned_bytes, part);
		left = cpu_copy(kernel + done, user + done, part, direction);
		if (left)
			return end_copy(kernel, done + part - left, bytes, direction);
	}
}

unsigned long cftu_copy_for_kernel(void *kernel, unsigned long user, unsigned long bytes,
				   bool to_user, unsigned long *by_engine)
{
	struct copied copied = { .channel = CFTU_NO_CHANNEL };
	unsigned long done;

	if (cftu_policy_is_off() || !engine_may_touch(kernel))
		return bytes;
	COUNT(copies, 1);
	COUNT(kernel_copies, 1);
	done = copy_parts(kernel, user, bytes, to_user ? CFTU_TO_USER : CFTU_FROM_USER, &copied);
	*by_engine = copied.engine_bytes;
	COUNT(kernel_engine_bytes, copied.engine_bytes);
	COUNT(unpinned_bytes, bytes - done);
	COUNT(cpu_bytes, bytes - done);
	return bytes - done;
}

unsigned long cftu_copy_by_cpu(void *kernel, unsigned long user, unsigned long bytes,
			       enum cftu_direction direction)
{
	COUNT(copies, 1);
	COUNT(asked_bytes, bytes);
	return cpu_copy_in_rounds(kernel, user, bytes, direction);
}

/*
 * Measures from which size on the engine is faster, pinning included: the first size at
 * which it wins and wins at the next one too. Each time is the best of MIN_BYTES_TRIALS.
 * For an engine that wins at larger sizes only, memwarden copy breakeven sets min_bytes.
 */
#define LEAST_BYTES 64
#define MOST_BYTES SZ_64K
#define MIN_BYTES_TRIALS 4

static u64 best_copy_ns(void *kernel, unsigned long user, unsigned long bytes, bool by_engine)
{
	struct copied copied = {};
	u64 best = U64_MAX, began;
	int trial;

	for (trial = 0; trial < MIN_BYTES_TRIALS; trial++) {
		began = ktime_get_ns();
		if (!by_engine)
			cpu_copy(kernel, user, bytes, CFTU_FROM_USER);
		else if (cftu_copy_user(kernel, user, bytes, CFTU_FROM_USER, &copied) ||
			 copied.engine_bytes < bytes)
			return U64_MAX;
		best = min(best, ktime_get_ns() - began);
	}
	return best;
}

static unsigned long measured_min_bytes(void *kernel, unsigned long user)
{
	unsigned long bytes, won = 0;

	for (bytes = LEAST_BYTES; bytes <= MOST_BYTES; bytes *= 2) {
		u64 engine_ns = best_copy_ns(kernel, user, bytes, true);

		if (engine_ns == U64_MAX)
			break;
		if (engine_ns >= best_copy_ns(kernel, user, bytes, false)) {
			won = 0;
			continue;
		}
		if (won)
			return won;
		won = bytes;
	}
	return ULONG_MAX;
}

void cftu_copy_measure_min_bytes(void)
{
	unsigned long user = 0;
	void *kernel;
	int cpu;

	if (min_bytes_given)
		return;
	WRITE_ONCE(min_bytes, ULONG_MAX);
	/* User memory of the process that loads the module. */
	if (current->mm)
		user = vm_mmap(NULL, 0, MOST_BYTES, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, 0);
	if (!user || IS_ERR_VALUE(user))
		return;
	kernel = vmalloc(MOST_BYTES);
	if (kernel && !clear_user((void __user *)user, MOST_BYTES))
		WRITE_ONCE(min_bytes, measured_min_bytes(kernel, user));
	vfree(kernel);
	vm_munmap(user, MOST_BYTES);
	/* The measurement's own copies don't count. */
	for_each_possible_cpu(cpu)
		memset(per_cpu_ptr(&counted, cpu), 0, sizeof(counted));
}

static unsigned long copy_if_long(void *kernel, unsigned long user, unsigned long bytes,
				  enum cftu_direction direction)
{
	bool is_long = bytes >= READ_ONCE(min_bytes);
	struct copied copied;

	if (is_long && engine_may_touch(kernel))
		return cftu_copy_user(kernel, user, bytes, direction, &copied);
	COUNT(copies, 1);
	if (is_long)
		COUNT(unpinned_bytes, bytes);
	else
		COUNT(small_bytes, bytes);
	return cpu_copy(kernel, user, bytes, direction);
}

unsigned long cftu_copy_from_user(void *to, const void __user *from, unsigned long bytes)
{
	return copy_if_long(to, (unsigned long)from, bytes, CFTU_FROM_USER);
}
EXPORT_SYMBOL_GPL(cftu_copy_from_user);

unsigned long cftu_copy_to_user(void __user *to, const void *from, unsigned long bytes)
{
	return copy_if_long((void *)from, (unsigned long)to, bytes, CFTU_TO_USER);
}
EXPORT_SYMBOL_GPL(cftu_copy_to_user);

/* Unpins @count pages. */
static void unpin_pages(struct page **pages, unsigned long count, bool writable)
{
	unsigned long some;

	for (; count; pages += some, count -= some) {
		some = min_t(unsigned long, count, ROUND_PAGES);
		unpin_user_pages_dirty_lock(pages, some, writable);
		cond_resched();
	}
}

/* Pins all pages, or none. Returns 0 or an errno. */
static int pin_pages(struct cftu_pinned *pinned)
{
	unsigned long done, part, at = pinned->address & PAGE_MASK;
	struct page **pages = pinned->pages;
	long got;
	int err = 0;

	for (done = 0; done < pinned->count && !err; done += got) {
		part = min_t(unsigned long, pinned->count - done, ROUND_PAGES);
		if (pinned->writable)
			got = pin_user_pages_fast(at, part, FOLL_LONGTERM | FOLL_WRITE, pages);
		else
			got = cftu_pin_to_read(at, part, pages);
		if (got <= 0)
			break;
		at += got * PAGE_SIZE;
		/* The CPU's copies of pinned memory don't check tags either. */
		if (cftu_pages_have_tags(pages, got))
			err = -EOPNOTSUPP;
		pages += got;
		cond_resched();
	}
	if (!err && done < pinned->count)
		err = -EFAULT;
	if (err)
		unpin_pages(pinned->pages, done, false);
	return err;
}

struct cftu_pinned *cftu_pin(unsigned long address, size_t bytes, bool writable)
{
	struct cftu_pinned *pinned;
	unsigned long end;
	int err;

	if (!bytes || bytes > CFTU_LENGTH_MAX || check_add_overflow(address, bytes, &end))
		return ERR_PTR(-EINVAL);
	if (!access_ok((void __user *)address, bytes))
		return ERR_PTR(-EFAULT);
	pinned = kzalloc(sizeof(*pinned), GFP_KERNEL);
	if (!pinned)
		return ERR_PTR(-ENOMEM);
	pinned->address = address;
	pinned->bytes = bytes;
	pinned->writable = writable;
	pinned->count = DIV_ROUND_UP(offset_in_page(address) + bytes, PAGE_SIZE);
	pinned->pages = kvmalloc_array(pinned->count, sizeof(*pinned->pages),
				       GFP_KERNEL | __GFP_NOWARN);
	if (!pinned->pages) {
		err = -ENOMEM;
		goto free;
	}
	err = account_locked_vm(current->mm, pinned->count, true);
	if (err)
		goto free_pages;
	err = pin_pages(pinned);
	if (err)
		goto unaccount;
	pinned->mm = current->mm;
	mmgrab(pinned->mm);
	return pinned;

unaccount:
	account_locked_vm(current->mm, pinned->count, false);
free_pages:
	kvfree(pinned->pages);
free:
	kfree(pinned);
	return ERR_PTR(err);
}
EXPORT_SYMBOL_GPL(cftu_pin);

void cftu_unpin(struct cftu_pinned *pinned)
{
	unpin_pages(pinned->pages, pinned->count, pinned->writable);
	account_locked_vm(pinned->mm, pinned->count, false);
	mmdrop(pinned->mm);
	kvfree(pinned->pages);
	kfree(pinned);
}
EXPORT_SYMBOL_GPL(cftu_unpin);

bool cftu_pinned_holds(const struct cftu_pinned *pinned, unsigned long address, size_t bytes,
		       size_t *offset)
{
	*offset = address - pinned->address;
	return address >= pinned->address && *offset <= pinned->bytes &&
	       bytes <= pinned->bytes - *offset;
}

bool cftu_pinned_is_writable(const struct cftu_pinned *pinned)
{
	return pinned->writable;
}

void cftu_pinned_flush(struct cftu_pinned *pinned, size_t offset, size_t bytes)
{
	unsigned long at = offset_in_page(pinned->address) + offset;
	size_t part;

	for (; bytes; bytes -= part, at += part) {
		u8 *page = kmap_local_page(pinned->pages[at / PAGE_SIZE]);

		part = min_t(size_t, bytes, PAGE_SIZE - offset_in_page(at));
		cftu_flush_lines(page + offset_in_page(at), part);
		kunmap_local(page);
		cond_resched();
	}
}

static int copy_held(void *kernel, struct cftu_pinned *pinned, size_t offset, size_t bytes,
		     enum cftu_direction direction, bool engine_may_touch, struct copied *copied)
{
	unsigned long at = offset_in_page(pinned->address) + offset;
	struct span span = {
		.kernel = kernel,
		.pages = pinned->pages + at / PAGE_SIZE,
		.at = offset_in_page(at),
		.bytes = bytes,
		.direction = direction,
		.copied = copied,
	};

	copied->engine_bytes = 0;
	copied->channel = CFTU_NO_CHANNEL;
	if (offset > pinned->bytes || bytes > pinned->bytes - offset)
		return -EINVAL;
	if (direction == CFTU_TO_USER && !cftu_pinned_is_writable(pinned))
		return -EPERM;
	might_sleep();
	COUNT(copies, 1);
	if (engine_may_touch && page_of(kernel)) {
		span_copy(&span);
	} else {
		bytes = span_by_cpu(&span, bytes);
		COUNT(unpinned_bytes, bytes);
	}
	return span.bytes ? -EINTR : 0;
}

int cftu_copy_pinned(void *kernel, struct cftu_pinned *pinned, size_t offset, size_t bytes,
		     enum cftu_direction direction, struct copied *copied)
{
	return copy_held(kernel, pinned, offset, bytes, direction, true, copied);
}

int cftu_copy_from_pinned(void *to, struct cftu_pinned *from, size_t offset, size_t bytes)
{
	struct copied copied;

	return copy_held(to, from, offset, bytes, CFTU_FROM_USER, engine_may_touch(to), &copied);
}
EXPORT_SYMBOL_GPL(cftu_copy_from_pinned);

int cftu_copy_to_pinned(struct cftu_pinned *to, size_t offset, const void *from, size_t bytes)
{
	struct copied copied;

	return copy_held((void *)from, to, offset, bytes, CFTU_TO_USER, engine_may_touch(from),
			 &copied);
}
EXPORT_SYMBOL_GPL(cftu_copy_to_pinned);
