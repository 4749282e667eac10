/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * User memory that is held for a transfer. Finding it fetches no page, and waits for no lock
 * that another task may hold without a bound.
 */
#ifndef CFTU_HOLD_H
#define CFTU_HOLD_H

#include <linux/mm_types.h>
#include <linux/types.h>

/**
 * cftu_hold_pages() - hold user pages that are present
 * @user: address in the calling task, checked with access_ok()
 * @count: number of pages, from the one that @user is in
 * @write: the engine writes to them
 * @pages: out: the @count pages
 *
 * A page is not held if it has to be fetched, copied or made writable first; if it has memory
 * tags (MTE), which an engine does not check; or, with @write, if it belongs to a file outside
 * tmpfs, whose file system may keep it locked.
 *
 * Return: true if all are held, for cftu_release_pages(); false if none is.
 */
bool cftu_hold_pages(unsigned long user, unsigned int count, bool write, struct page **pages);

/**
 * cftu_release_pages() - release pages that cftu_hold_pages() holds
 * @pages: the pages
 * @count: number of pages
 * @write: as it was for cftu_hold_pages(); true marks them dirty
 */
void cftu_release_pages(struct page **pages, unsigned int count, bool write);

/* True if a page has memory tags: an access through another tag must fail. */
bool cftu_pages_have_tags(struct page **pages, unsigned long count);

#endif /* CFTU_HOLD_H */
