// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-tags: copies by the engine through pointers with a tag. Prints a line for each case:
 *
 *   untagged  tagged addresses are not enabled: such a pointer fails with EFAULT
 *   ignored   they are enabled: the tag is ignored, and the engine copies
 *   checked   memory with tags (PROT_MTE): "right" through its own tag, and the CPU copies;
 *             "stopped" through another tag; it can't be pinned. "no MTE" without MTE.
 *
 * For arm64 only: elsewhere a pointer has no tag.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "../../../kernel/include/uapi/memwarden/cftu.h"

#define BYTES 16384
/* linux/prctl.h, asm/mman.h and asm/hwcap.h, of which a libc may have older ones. */
#define SET_TAGGED_ADDR_CTRL 55
#define TAGGED_ADDR_ENABLE 1UL
#define TCF_SYNC (1UL << 1)
#define ALL_TAGS (0xffffUL << 3)
#define MAP_WITH_TAGS 0x20
#define HAS_MTE (1UL << 18)

static int fd;

/* The bytes copied, and how many of them by the engine. */
static long copy(uint64_t address, int direction, uint64_t *by_engine)
{
	struct cftu_copy request = {
		.address = address,
		.bytes = BYTES,
		.direction = direction,
		.engine = CFTU_DMA,
	};

	if (ioctl(fd, CFTU_COPY, &request))
		return -errno;
	*by_engine = request.engine_bytes;
	return BYTES - request.not_copied;
}

static uint64_t tagged(const void *memory, uint64_t tag)
{
	return (uintptr_t)memory | tag << 56;
}

/* Gives the memory's granules of 16 bytes the tag. */
static void set_tags(void *memory, uint64_t tag)
{
	for (long at = 0; at < BYTES; at += 16)
		asm volatile(".arch armv8.5-a+memtag\n\tstg %0, [%0]"
			     : : "r" (tagged((char *)memory + at, tag)) : "memory");
}

static void show(const char *what, uint64_t address)
{
	static const char *const ways[] = { "from", "to" };

	for (int direction = 0; direction < 2; direction++) {
		uint64_t by_engine = 0;
		long copied = copy(address, direction, &by_engine);

		printf("%s %s: %s, %llu by the engine\n", what, ways[direction],
		       copied == BYTES ? "right" : copied < 0 ? "refused" : "stopped",
		       (unsigned long long)by_engine);
	}
}

int main(void)
{
	struct cftu_region region = { .bytes = BYTES };
	struct cftu_pin pin = { .bytes = BYTES };
	unsigned char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	fd = open("/dev/cftu", O_RDWR);
	if (fd < 0 || memory == MAP_FAILED || ioctl(fd, CFTU_REGION, &region)) {
		perror("/dev/cftu");
		return 1;
	}
	show("untagged", tagged(memory, 0x5a));
	if (prctl(SET_TAGGED_ADDR_CTRL, TAGGED_ADDR_ENABLE, 0, 0, 0)) {
		printf("ignored: no tags in addresses\n");
		return 0;
	}
	show("ignored", tagged(memory, 0x5a));
	if (!(getauxval(AT_HWCAP2) & HAS_MTE)) {
		printf("checked: no MTE\n");
		return 0;
	}
	if (prctl(SET_TAGGED_ADDR_CTRL, TAGGED_ADDR_ENABLE | TCF_SYNC | ALL_TAGS, 0, 0, 0)) {
		perror("prctl");
		return 1;
	}
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE | MAP_WITH_TAGS,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("PROT_MTE");
		return 1;
	}
	set_tags(memory, 5);
	show("checked, its tag", tagged(memory, 5));
	show("checked, another", tagged(memory, 6));
	pin.address = tagged(memory, 5);
	printf("checked, pinned: %s\n", ioctl(fd, CFTU_PIN, &pin) ? strerror(errno) : "yes");
	return 0;
}
