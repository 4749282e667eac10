// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-late: a transfer of 16 pieces is terminated, of which swdma calls the 9th back 100 ms
 * later. By then a transfer of one page is under way that hangs half-way: the callback must not
 * end it. Prints "right" if it ends by timing out, after which the CPU copies.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/cftu.h"

#define BYTES (64 * 1024)
#define PAGE 4096

static int set(const char *module, const char *name, const char *value)
{
	char path[128];
	int fd, bad;

	snprintf(path, sizeof(path), "/sys/module/%s/parameters/%s", module, name);
	fd = open(path, O_WRONLY);
	bad = fd < 0 || write(fd, value, strlen(value)) < 0;
	if (bad)
		perror(path);
	close(fd);
	return bad;
}

int main(void)
{
	unsigned char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct cftu_region region = { .bytes = BYTES };
	static unsigned char back[PAGE];
	struct cftu_copy copy = {
		.address = (uintptr_t)memory,
		.bytes = BYTES,
		.direction = CFTU_FROM_USER,
		.engine = CFTU_DMA,
	};
	struct cftu_channel before = { .channel = 0 }, after = { .channel = 0 };
	int fd = open("/dev/cftu", O_RDWR);

	if (fd < 0 || memory == MAP_FAILED || ioctl(fd, CFTU_REGION, &region)) {
		perror("/dev/cftu");
		return 2;
	}
	memset(memory, 1, BYTES);
	/* After the first, which times out, the channel is requested again and counts from 0. */
	if (set("swdma", "hang", "1") || ioctl(fd, CFTU_COPY, &copy) ||
	    set("swdma", "hang", "0") || set("swdma", "late", "9") ||
	    ioctl(fd, CFTU_COPY, &copy))
		return 2;
	memset(memory, 2, PAGE);
	copy.bytes = PAGE;
	if (set("swdma", "late", "0") || set("swdma", "hang", "1") ||
	    set("cftu", "timeout_ms", "2000") || ioctl(fd, CFTU_CHANNEL, &before) ||
	    ioctl(fd, CFTU_COPY, &copy) || set("swdma", "hang", "0"))
		return 2;
	copy.address = (uintptr_t)back;
	copy.direction = CFTU_TO_USER;
	copy.engine = CFTU_CPU;
	if (ioctl(fd, CFTU_COPY, &copy) || ioctl(fd, CFTU_CHANNEL, &after)) {
		perror("cftu");
		return 2;
	}
	printf("%s, after %llu timeouts\n", memcmp(back, memory, PAGE) ? "wrong" : "right",
	       (unsigned long long)(after.timeouts - before.timeouts));
	return 0;
}
