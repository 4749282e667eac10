// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-lost COPIES: copies by the engine, each in a new process whose memory and region are
 * freed at once, and allocated and filled by another one. An engine that still works on an
 * abandoned copy would write there. Prints a line and exits with 1 if a copy is wrong, or a
 * word changes within half a second.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/cftu.h"

#define BYTES (64 * 1024)
#define WATCHED (2L << 20)
#define COPIES_MAX 100

/* Single pages: freed ones are the first to be allocated again. */
static void *new_memory(long bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		_exit(2);
	}
	/* A kernel without huge pages refuses. */
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	memset(memory, 0, bytes);
	return memory;
}

static int copy(int fd, void *user, int direction)
{
	struct cftu_copy request = {
		.address = (uintptr_t)user,
		.bytes = BYTES,
		.direction = direction,
		.engine = CFTU_DMA,
	};

	return ioctl(fd, CFTU_COPY, &request) || request.not_copied;
}

static int child(int number)
{
	unsigned char *given = new_memory(BYTES), *taken = new_memory(BYTES);
	struct cftu_region region = { .bytes = BYTES };
	int fd = open("/dev/cftu", O_RDWR);

	memset(given, 1 + number % 255, BYTES);
	if (fd < 0 || ioctl(fd, CFTU_REGION, &region) || copy(fd, given, CFTU_FROM_USER) ||
	    copy(fd, taken, CFTU_TO_USER))
		return 2;
	return !!memcmp(given, taken, BYTES);
}

/* No two words are equal, from any process. */
static uint64_t word(long area, long at)
{
	return (area * WATCHED + at + 1) * 0x9e3779b97f4a7c15;
}

int main(int argc, char **argv)
{
	uint64_t *watched[COPIES_MAX];
	cpu_set_t one;
	long copies;

	if (argc != 2 || (copies = atol(argv[1])) < 1 || copies > COPIES_MAX) {
		fprintf(stderr, "usage: cftu-lost COPIES\n");
		return 2;
	}
	/* One CPU, since each CPU has its own list of free pages. */
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	if (sched_setaffinity(0, sizeof(one), &one)) {
		perror("sched_setaffinity");
		return 2;
	}
	for (long i = 0; i < copies; i++) {
		pid_t pid = fork();
		int status;

		if (!pid)
			_exit(child(i));
		if (waitpid(pid, &status, 0) != pid || status) {
			printf("copy %ld: status %x\n", i, status);
			return 1;
		}
		watched[i] = new_memory(WATCHED);
		for (long at = 0; at < WATCHED / 8; at++)
			watched[i][at] = word(i, at);
	}
	usleep(500000);
	for (long i = 0; i < copies; i++)
		for (long at = 0; at < WATCHED / 8; at++)
			if (watched[i][at] != word(i, at)) {
				printf("word %ld of other memory has changed\n", at);
				return 1;
			}
	printf("%ld copies, all as they must be\n", copies);
	return 0;
}
