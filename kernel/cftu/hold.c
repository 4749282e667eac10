// SPDX-License-Identifier: GPL-2.0-only
/*
 * User memory that is held for a transfer.
 *
 * To be read, by a reference each: a pin would have the kernel copy a page first that a fork
 * left to two processes. To be written to, by a pin, without which a fork meanwhile would
 * give the engine's bytes to one of the processes only. The kernel pins without waiting
 * under the lock of the process's memory alone, so that is taken if it is free.
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
/* Not all kernels tell it of a huge page: with MTE that counts as having some. */
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

bool have_tags(struct page **pages, unsigned long count)
{
	while (count)
		if (has_tags(pages[--count]))
			return true;
	return false;
}

/*
 * What was written to is marked so under the page's lock. Anonymous memory, tmpfs and huge pages
 * hold it for as long as the kernel's own work takes.
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

bool hold_present(unsigned long user, unsigned int count, bool write, struct page **pages)
{
	unsigned int found = write ? find_to_write(user, count, pages) :
				     find_to_read(user, count, pages);

	if (found == count && !have_tags(pages, count) && (!write || may_be_written(pages, count)))
		return true;
	put(pages, found, write);
	return false;
}

void let_go(struct page **pages, unsigned int count, bool write)
{
	if (write)
		unpin_user_pages_dirty_lock(pages, count, true);
	else
		put(pages, count, false);
}
