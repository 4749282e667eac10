// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * hog CLASS [CPU]: touches fresh pages at full speed until it is killed, in a
 * scheduling class: other, fifo (priority 99) or deadline (0.9 ms of each ms, with
 * an earlier deadline than all other tasks). On one CPU, if that is given.
 * hog resting [CPU]: deadline, but sleeps for half of each second: other tasks, RCU's among them,
 * run then.
 * hog steady [CPU]: an ordinary task that gives back 16 pages at a time; the classes above
 * unmap 256 at once, and touch none for 0.1 ms and more meanwhile.
 * hog collapse [CPU]: makes the kernel copy pages into a huge one, which a kernel
 * without preemption does without interruption.
 */
#define _GNU_SOURCE
#include <linux/types.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct attributes {
	__u32 size, policy;
	__u64 flags;
	__s32 nice;
	__u32 priority;
	__u64 runtime, deadline, period;
};

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static char *map(size_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	return memory;
}

static void touch(char *memory, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += 4096)
		memory[at] = 1;
}

static void collapse(void)
{
	const size_t huge = 2 << 20;
	char *memory = map(2 * huge), *aligned;

	aligned = (char *)(((unsigned long)memory + huge - 1) & -huge);
	touch(aligned, huge);
	madvise(aligned, huge, MADV_HUGEPAGE);
	if (madvise(aligned, huge, 25 /* MADV_COLLAPSE */))
		fail("MADV_COLLAPSE");
	munmap(memory, 2 * huge);
}

/* Sleeps through the second half of each second. */
static void rest(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (now.tv_nsec >= 500000000)
		usleep((1000000000 - now.tv_nsec) / 1000 + 1);
}

static void touch_steadily(void)
{
	const size_t bytes = 16 * 4096;
	char *memory = map(bytes);

	for (;;) {
		touch(memory, bytes);
		if (madvise(memory, bytes, MADV_DONTNEED))
			fail("MADV_DONTNEED");
	}
}

int main(int count, char **arguments)
{
	struct attributes attributes = { .size = sizeof(attributes) };
	const size_t bytes = 1 << 20;
	const char *class = count > 1 ? arguments[1] : "other";

	if (count > 2) {
		cpu_set_t cpus;

		CPU_ZERO(&cpus);
		CPU_SET(atoi(arguments[2]), &cpus);
		if (sched_setaffinity(0, sizeof(cpus), &cpus))
			fail("sched_setaffinity");
	}
	if (!strcmp(class, "fifo")) {
		attributes.policy = SCHED_FIFO;
		attributes.priority = 99;
	} else if (!strcmp(class, "deadline") || !strcmp(class, "resting")) {
		attributes.policy = 6; /* SCHED_DEADLINE */
		attributes.runtime = 900000;
		attributes.deadline = 1000000;
		attributes.period = 1000000;
	}
	if (attributes.policy && syscall(SYS_sched_setattr, 0, &attributes, 0))
		fail("sched_setattr");
	if (!strcmp(class, "steady"))
		touch_steadily();
	while (!strcmp(class, "collapse"))
		collapse();
	for (;;) {
		char *memory = map(bytes);

		touch(memory, bytes);
		munmap(memory, bytes);
		if (!strcmp(class, "resting"))
			rest();
	}
}
