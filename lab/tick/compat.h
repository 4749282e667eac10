/* SPDX-License-Identifier: GPL-2.0-only */
/* All that differs between the kernels that we build for. */
#ifndef MEMWARDEN_TICK_COMPAT_H
#define MEMWARDEN_TICK_COMPAT_H

#include <linux/hrtimer.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
static inline void hrtimer_setup(struct hrtimer *timer,
				 enum hrtimer_restart (*function)(struct hrtimer *),
				 clockid_t clock_id, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock_id, mode);
	timer->function = function;
}
#endif

#endif /* MEMWARDEN_TICK_COMPAT_H */
