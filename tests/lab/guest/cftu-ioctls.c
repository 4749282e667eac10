// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-ioctls COUNT SEED: requests to /dev/cftu that are mostly invalid: any command,
 * any content, with some plausible fields. The kernel's log shows its complaints.
 * Copies go to an arena of this program, or to addresses without memory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/cftu.h"

#define ARENA (1 << 20)

static uint64_t random_;
static unsigned char *arena;

/* xorshift64 */
static uint64_t draw(void)
{
	random_ ^= random_ << 13;
	random_ ^= random_ >> 7;
	random_ ^= random_ << 17;
	return random_;
}

/* Addresses in the arena, beside it, of no memory, and of the kernel. */
static uint64_t draw_address(void)
{
	switch (draw() % 8) {
	case 0:
		return 0;
	case 1:
		return draw() | 0xffff000000000000;
	case 2:
		return (uintptr_t)arena + ARENA + draw() % 65536;
	default:
		return (uintptr_t)arena + draw() % ARENA;
	}
}

static uint64_t draw_size(void)
{
	switch (draw() % 16) {
	case 0:
		return draw();
	case 1:
		return UINT64_MAX - draw() % 4096;
	case 2:
		return draw() % ARENA;
	default:
		return draw() % 8192;
	}
}

/* A random request with plausible fields; the command decides how they are read. */
static void fill(uint64_t *words, unsigned int command)
{
	memset(words, 0, 128);
	switch (_IOC_NR(command)) {
	case _IOC_NR(CFTU_POLICY):
		words[0] = draw() % 6 | (draw() % 4) << 32;
		if (draw() % 2) {
			words[1] = draw() % 200000;
			words[2] = draw() % 200000;
			words[3] = draw() % 64;
		}
		break;
	case _IOC_NR(CFTU_BATCH):
		words[0] = draw_address();
		words[1] = draw() % 64 | (draw() % 8 == 0 ? 1ULL << 32 : 0);
		break;
	case _IOC_NR(CFTU_COPY):
		words[0] = draw_address();
		words[1] = draw_size();
		words[2] = draw_size();
		words[3] = draw() % 3 | (draw() % 3) << 32;
		words[4] = draw() % 3 | (draw() % 4) << 32;
		break;
	case _IOC_NR(CFTU_UNPIN):
		words[0] = draw() % 8;
		break;
	default:
		words[0] = draw() % 2 ? draw_address() : draw_size();
		words[1] = draw_size();
		words[2] = draw() % 4;
	}
	if (draw() % 16 == 0)
		words[draw() % 16] = draw();
}

int main(int argc, char **argv)
{
	static const unsigned int commands[] = {
		CFTU_INFO, CFTU_POLICY, CFTU_REGION, CFTU_PIN, CFTU_UNPIN,
		CFTU_COPY, CFTU_BATCH, CFTU_CHANNEL, CFTU_STATISTICS,
	};
	long count, taken = 0;
	int fd;

	if (argc != 3 || (count = atol(argv[1])) < 1) {
		fprintf(stderr, "usage: cftu-ioctls COUNT SEED\n");
		return 2;
	}
	random_ = 0x9e3779b97f4a7c15 * (strtoull(argv[2], NULL, 0) + 1);
	/* No memory is mapped beside the arena. */
	arena = mmap(NULL, 2 * ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fd = open("/dev/cftu", O_RDWR);
	if (arena == MAP_FAILED || mprotect(arena, ARENA, PROT_READ | PROT_WRITE) || fd < 0) {
		printf("/dev/cftu: %s\n", strerror(errno));
		return 1;
	}
	for (long i = 0; i < count; i++) {
		unsigned int command = commands[draw() % (sizeof(commands) / sizeof(commands[0]))];
		uint64_t words[16];
		void *argument = words;

		fill(words, command);
		if (draw() % 32 == 0)
			command ^= 1u << draw() % 32;
		/* Also with a request that is only partly in memory. */
		if (draw() % 32 == 0)
			argument = (void *)draw_address();
		if (!ioctl(fd, command, argument))
			taken++;
		/* Release its memory at times, so that some is free. */
		if (draw() % 1024 == 0) {
			close(fd);
			fd = open("/dev/cftu", O_RDWR);
			if (fd < 0) {
				printf("/dev/cftu: %s\n", strerror(errno));
				return 1;
			}
		}
	}
	printf("%ld requests, %ld of them taken\n", count, taken);
	return 0;
}
