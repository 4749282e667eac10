// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * hog CLASS [CPU]: touches fresh pages as fast as it can until it is killed, in a
 * scheduling class: other, fifo (priority 99) or deadline (0.9 ms of each ms, with
 * a deadline that is earlier than any other here). On one CPU, if that is given.
 */
#define _GNU_SOURCE
#include <linux/types.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
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

int main(int count, char **arguments)
{
	struct attributes attributes = { .size = sizeof(attributes) };
	const size_t bytes = 1 << 20, page = 4096;
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
	} else if (!strcmp(class, "deadline")) {
		attributes.policy = 6; /* SCHED_DEADLINE */
		attributes.runtime = 900000;
		attributes.deadline = 1000000;
		attributes.period = 1000000;
	}
	if (attributes.policy && syscall(SYS_sched_setattr, 0, &attributes, 0))
		fail("sched_setattr");
	for (;;) {
		char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (memory == MAP_FAILED)
			fail("mmap");
		madvise(memory, bytes, MADV_NOHUGEPAGE);
		for (size_t at = 0; at < bytes; at += page)
			memory[at] = 1;
		munmap(memory, bytes);
	}
}
