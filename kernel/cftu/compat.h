/* SPDX-License-Identifier: GPL-2.0-only */
/* All that differs between the kernels that we build for. */
#ifndef CFTU_COMPAT_H
#define CFTU_COMPAT_H

#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/sched.h>
#include <linux/version.h>

/* pin_user_pages(), whose last argument went with Linux 6.5. */
static inline long cftu_pin_user_pages(unsigned long start, unsigned long count,
				       unsigned int flags, struct page **pages)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
	return pin_user_pages(start, count, flags, pages);
#else
	return pin_user_pages(start, count, flags, pages, NULL);
#endif
}

/**
 * cftu_pin_to_read() - pin pages for long, to be read
 * @start: address of the first one, in the calling task
 * @count: number of pages
 * @pages: out: the pages
 *
 * Private memory gets pages of its own first, so that the pin keeps the page that later writes
 * of the task go to. Linux does it from 6.2 on. Before, a pin that doesn't write leaves memory
 * that was never written on the page of zeros or the file's page, and the first write moves the
 * mapping to another page. So the pin is one that writes there, with FOLL_FORCE for memory
 * that is read-only at present, as RDMA's pins were. Shared mappings are pinned as they are:
 * a write to them changes the page itself, and a pin that writes would refuse those that are
 * read-only.
 *
 * Return: the number of pages pinned, at least 1, or an errno. It may be fewer than @count.
 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static inline long cftu_pin_to_read(unsigned long start, unsigned long count, struct page **pages)
{
	return pin_user_pages_fast(start, count, FOLL_LONGTERM, pages);
}
#else
static inline long cftu_pin_to_read(unsigned long start, unsigned long count, struct page **pages)
{
	unsigned int flags = FOLL_LONGTERM;
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *area;
	long found = -EFAULT;

	start = untagged_addr(start);
	if (mmap_read_lock_killable(mm))
		return -EINTR;
	area = vma_lookup(mm, start);
	if (area) {
		/* The force must not open memory that may not be read. */
		if (is_cow_mapping(area->vm_flags) && (area->vm_flags & VM_READ))
			flags |= FOLL_WRITE | FOLL_FORCE;
		count = min(count, (area->vm_end - start) / PAGE_SIZE);
		found = cftu_pin_user_pages(start, count, flags, pages);
	}
	mmap_read_unlock(mm);
	return found;
}
#endif

#endif /* CFTU_COMPAT_H */
