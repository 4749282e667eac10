// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The PMU's counts of passes over a buffer: refills read|write|execute MIB PASSES
 *
 * One line for each event: its number, its count, and lines times passes. User mode is counted; an
 * event with a k after its number counts the kernel too, whose interrupts evict some of the
 * buffer's dirty lines.
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

#define PAGE 4096

/* L1D refill, L2D, L2D refill and write-back, bus; and L1I refill or, with the kernel, write-back */
static const int events[] = { 0x03, 0x16, 0x17, 0x18, 0x19 };

#define EVENTS (sizeof(events) / sizeof(*events) + 1)

#define NOP 0xd503201f
#define RET 0xd65f03c0

/* A function in each page */
static void fill_with_code(uint32_t *buffer, size_t bytes)
{
	for (size_t at = 0; at < bytes / sizeof(*buffer); at++)
		buffer[at] = (at + 1) % (PAGE / sizeof(*buffer)) ? NOP : RET;
	__builtin___clear_cache((char *)buffer, (char *)buffer + bytes);
}

static void execute(const char *buffer, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += PAGE)
		((void (*)(void))(buffer + at))();
}

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
	int writes = argc == 4 && !strcmp(argv[1], "write");
	int executes = argc == 4 && !strcmp(argv[1], "execute");
	int passes = argc == 4 ? atoi(argv[3]) : 0;
	uint64_t lines = bytes / LINE * passes;
	void *buffer;
	int fd[EVENTS], event[EVENTS] = { executes ? 0x01 : 0x18 };

	if (!lines)
		errx(2, "usage: refills read|write|execute MIB PASSES");
	buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE | (executes ? PROT_EXEC : 0),
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (buffer == MAP_FAILED)
		err(1, "mmap");
	if (executes)
		fill_with_code(buffer, bytes);
	memcpy(event + 1, events, sizeof(events));
	for (size_t i = 0; i < EVENTS; i++) {
		struct perf_event_attr a = {
			.size = sizeof(a), .type = PERF_TYPE_RAW, .config = event[i],
			.disabled = 1, .pinned = 1, .exclude_kernel = i || executes,
		};

		fd[i] = syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
		if (fd[i] < 0)
			err(1, "event %#x", event[i]);
	}
	/* The first pass is not counted: after it the caches hold lines of the buffer only. */
	for (int i = 0; i <= passes; i++) {
		for (size_t j = 0; i == 1 && j < EVENTS; j++)
			ioctl(fd[j], PERF_EVENT_IOC_ENABLE, 0);
		if (executes)
			execute(buffer, bytes);
		else
			pass(buffer, bytes, writes);
	}
	for (size_t i = 0; i < EVENTS; i++)
		ioctl(fd[i], PERF_EVENT_IOC_DISABLE, 0);
	for (size_t i = 0; i < EVENTS; i++) {
		uint64_t count;

		if (read(fd[i], &count, sizeof(count)) != sizeof(count))
			err(1, "read");
		printf("%s %#04x%s: %llu of %llu lines\n", argv[1], event[i],
		       i || executes ? "" : "k", (unsigned long long)count,
		       (unsigned long long)lines);
	}
	return 0;
}
