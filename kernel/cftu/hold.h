/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * User memory that is held for a transfer: found without a page's being fetched, and without
 * a lock's being awaited that another task may hold for as long as it likes.
 */
#ifndef CFTU_HOLD_H
#define CFTU_HOLD_H

#include <linux/mm_types.h>
#include <linux/types.h>

/**
 * hold_present() - hold user pages that are there
 * @user: memory of the calling task, which access_ok() allows
 * @count: of the pages from its first one on
 * @write: the engine writes to them
 * @pages: out: they, @count of them
 *
 * Return: whether all are held, for let_go(); else none is. Not held are pages that have to
 * be fetched, or copied, or made writable; those that check tags (MTE), which an engine does
 * not; and to be written to those of a file, but in tmpfs, whose file system may keep them
 * locked.
 */
bool hold_present(unsigned long user, unsigned int count, bool write, struct page **pages);
void let_go(struct page **pages, unsigned int count, bool write);

/* Whether one of them has memory tags: an access with another tag is to fail. */
bool have_tags(struct page **pages, unsigned long count);

#endif /* CFTU_HOLD_H */
