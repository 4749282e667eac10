/* SPDX-License-Identifier: GPL-2.0-only */
/* All that differs between the kernels that we build for. */
#ifndef CFTU_COMPAT_H
#define CFTU_COMPAT_H

#include <linux/mm.h>
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

#endif /* CFTU_COMPAT_H */
