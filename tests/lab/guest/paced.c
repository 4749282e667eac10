// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * paced EVENTS EVERY_US SECONDS: touches EVENTS fresh pages at once, every EVERY_US
 * microseconds, and spins between, so that its core is never idle. With 0 events it
 * only spins. Prints how long a fixed number of instructions took: "N ns".
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static void touch(char *memory, long pages)
{
	for (long page = 0; page < pages; page++)
		memory[page * 4096] = 1;
	madvise(memory, pages * 4096, MADV_DONTNEED);
}

int main(int count, char **arguments)
{
	long events = count > 1 ? atol(arguments[1]) : 0;
	uint64_t every = (count > 2 ? atol(arguments[2]) : 1000) * 1000ULL;
	uint64_t begin = now_ns(), next = begin;
	uint64_t end = begin + (count > 3 ? atol(arguments[3]) : 1) * 1000000000ULL;
	char *memory = mmap(NULL, (events + 1) * 4096, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	madvise(memory, (events + 1) * 4096, MADV_NOHUGEPAGE);
	while (events && next < end) {
		while (now_ns() < next)
			;
		touch(memory, events);
		next += every;
	}
	if (!events) {
		for (volatile long turn = 0; turn < 20000000; turn++)
			;
		printf("%llu ns\n", (unsigned long long)(now_ns() - begin));
	}
	return 0;
}
