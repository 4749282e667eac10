// SPDX-License-Identifier: GPL-2.0-only
/*
 * User memory that is held for a transfer.
 *
 * Pages to be read get a reference each: a pin would make the kernel copy a page that a fork
 * has left shared. Pages to be written are pinned: otherwise a fork during the transfer would
 * show the engine's bytes to one of the processes only. The kernel pins without faulting only
 * under mmap_lock, so that lock is taken if it is free.
 */
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/page-flags.h>
#include <linux/sched.h>
#ifdef CONFIG_ARM64_MTE
#include <asm/cpufeature.h>
#include <asm/mte.h>
#endif

#include "compat.h"
#include "hold.h"

#ifdef CONFIG_ARM64_MTE
/* Not all kernels know it of a huge page: with MTE, huge pages count as tagged. */
static bool has_tags(struct page *page)
{
	return system_supports_mte() &&
	       (folio_test_hugetlb(page_folio(page)) || page_mte_tagged(page));
}
#else
static bool has_tags(struct page *page)
{
	return false;
}
#endif

bool cftu_pages_have_tags(struct page **pages, unsigned long count)
{
	while (count)
		if (has_tags(pages[--count]))
			return true;
	return false;
}

/*
 * Marking a page dirty takes its lock. For anonymous memory, tmpfs and huge pages only the
 * kernel holds that lock, and briefly; a file system may hold it without a bound.
 */
static bool may_be_written(struct page **pages, unsigned int count)
{
	for (; count; count--) {
		struct folio *folio = page_folio(pages[count - 1]);

		if (!folio_test_swapbacked(folio) && !folio_test_hugetlb(folio))
			return false;
	}
	return true;
}

static unsigned int find_to_write(unsigned long user, unsigned int count, struct page **pages)
{
	struct mm_struct *mm = current->mm;
	long found;

	if (!mmap_read_trylock(mm))
		return 0;
	found = cftu_pin_user_pages(user & PAGE_MASK, count, FOLL_WRITE | FOLL_NOFAULT, pages);
	mmap_read_unlock(mm);
	return found > 0 ? found : 0;
}

static unsigned int find_to_read(unsigned long user, unsigned int count, struct page **pages)
{
	int found = get_user_pages_fast_only(user & PAGE_MASK, count, 0, pages);

	return found > 0 ? found : 0;
}

static void put(struct page **pages, unsigned int count, bool write)
{
	if (write)
		unpin_user_pages(pages, count);
	else
		while (count)
			put_page(pages[--count]);
}

bool cftu_hold_pages(unsigned long user, unsigned int count, bool write, struct page **pages)
{
	unsigned int found = write ? find_to_write(user, count, pages) :
				     find_to_read(user, count, pages);

	if (found == count && !cftu_pages_have_tags(pages, count) &&
	    (!write || may_be_written(pages, count)))
		return true;
	put(pages, found, write);
	return false;
}

void cftu_release_pages(struct page **pages, unsigned int count, bool write)
{
	if (write)
		unpin_user_pages_dirty_lock(pages, count, true);
	else
		put(pages, count, false);
}
