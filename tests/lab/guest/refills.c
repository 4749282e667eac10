// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The PMU's counts of passes over a buffer: refills read|write MIB PASSES
 *
 * One line for each event: its number, its count, and lines times passes.
 */
#define _GNU_SOURCE
#include <err.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINE 64

/* L1D, L1D refill, L2D, L2D refill, L2D write-back, bus */
static const int events[] = { 0x04, 0x03, 0x16, 0x17, 0x18, 0x19 };

#define EVENTS (sizeof(events) / sizeof(*events))

static void pass(volatile uint64_t *buffer, size_t bytes, int write)
{
	for (size_t at = 0; at < bytes / sizeof(*buffer); at += LINE / sizeof(*buffer)) {
		if (write)
			buffer[at] = at;
		else
			(void)buffer[at];
	}
}

int main(int argc, char **argv)
{
	size_t bytes = argc == 4 ? strtoull(argv[2], NULL, 0) << 20 : 0;
	int write = argc == 4 && !strcmp(argv[1], "write");
	int passes = argc == 4 ? atoi(argv[3]) : 0;
	uint64_t lines = bytes / LINE * passes;
	volatile uint64_t *buffer;
	int fd[EVENTS];

	if (!lines)
		errx(2, "usage: refills read|write MIB PASSES");
	buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (buffer == MAP_FAILED)
		err(1, "mmap");
	for (size_t i = 0; i < EVENTS; i++) {
		struct perf_event_attr a = {
			.size = sizeof(a), .type = PERF_TYPE_RAW, .config = events[i],
			.disabled = 1, .pinned = 1, .exclude_kernel = 1,
		};

		fd[i] = syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
		if (fd[i] < 0)
			err(1, "event %#x", events[i]);
	}
	/* From here on the caches hold lines of the buffer only. */
	pass(buffer, bytes, write);
	for (size_t i = 0; i < EVENTS; i++)
		ioctl(fd[i], PERF_EVENT_IOC_ENABLE, 0);
	for (int i = 0; i < passes; i++)
		pass(buffer, bytes, write);
	for (size_t i = 0; i < EVENTS; i++)
		ioctl(fd[i], PERF_EVENT_IOC_DISABLE, 0);
	for (size_t i = 0; i < EVENTS; i++) {
		uint64_t count;

		if (read(fd[i], &count, sizeof(count)) != sizeof(count))
			err(1, "read");
		printf("%s %#04x: %llu of %llu lines\n", argv[1], events[i],
		       (unsigned long long)count, (unsigned long long)lines);
	}
	return 0;
}
