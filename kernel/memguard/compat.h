/* SPDX-License-Identifier: GPL-2.0-only */
/* Differences between the supported kernels and architectures. */
#ifndef MEMGUARD_COMPAT_H
#define MEMGUARD_COMPAT_H

#include <linux/hrtimer.h>
#include <linux/irqflags.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
/* Older kernels give a module no scheduling class that holds a core (sched_setattr_nocheck). */
#error "memguard needs Linux 6.1 or later; use memwarden guard start --backend user"
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
static inline void hrtimer_setup(struct hrtimer *timer,
				 enum hrtimer_restart (*function)(struct hrtimer *),
				 clockid_t clock_id, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock_id, mode);
	timer->function = function;
}
#endif

#ifdef CONFIG_X86
/* cpuid_eax() */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 16, 0)
#include <asm/processor.h>
#else
#include <asm/cpuid/api.h>
#endif
#endif

/*
 * mg_halt() - stop the pipeline until an interrupt arrives, and serve it. Entered with interrupts
 * off, returns with interrupts on. An interrupt that is already pending ends the wait at once.
 */
#if defined(CONFIG_ARM64)

#include <asm/barrier.h>
#include <asm/cpuidle.h>

static inline void mg_halt(void)
{
	struct arm_cpuidle_irq_context context;

	arm_cpuidle_save_irq_context(&context);
	dsb(sy);
	wfi();
	arm_cpuidle_restore_irq_context(&context);
	local_irq_enable();
}

#elif defined(CONFIG_X86)

static inline void mg_halt(void)
{
	safe_halt();
}

#else

#include <linux/processor.h>

static inline void mg_halt(void)
{
	cpu_relax();
	local_irq_enable();
}

#endif

#endif /* MEMGUARD_COMPAT_H */
