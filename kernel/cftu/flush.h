/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Writes a range's cache lines back and invalidates them, so that the next copy finds the
 * data in memory only. Kernels export no common function for that.
 */
#ifndef CFTU_FLUSH_H
#define CFTU_FLUSH_H

#include <linux/types.h>

#if defined(CONFIG_X86)
#include <asm/cacheflush.h>

static inline void cftu_flush_lines(void *from, size_t bytes)
{
	clflush_cache_range(from, bytes);
}

#elif defined(CONFIG_ARM64)
#include <asm/barrier.h>
#include <asm/cache.h>
#include <asm/cputype.h>

static inline void cftu_flush_lines(void *from, size_t bytes)
{
	/* DminLine: the shortest line of all data caches, log2 of its 4-byte words. */
	unsigned long line = 4UL << (read_cpuid_cachetype() >> 16 & 0xf);
	unsigned long at;

	for (at = (unsigned long)from & ~(line - 1); at < (unsigned long)from + bytes; at += line)
		asm volatile("dc civac, %0" : : "r" (at) : "memory");
	dsb(sy);
}

#else
#error "cftu can flush cache lines on x86 and arm64 only"
#endif

#endif /* CFTU_FLUSH_H */
