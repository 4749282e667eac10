// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-statistics: cftu's counts, a line "name value" for each field of struct
 * cftu_statistics that a test needs, and its flags.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "../../../kernel/include/uapi/memwarden/cftu.h"

#define SHOW(field) printf(#field " %llu\n", (unsigned long long)statistics.field)

int main(int argc, char **argv)
{
	struct cftu_region region = { .bytes = 1 << 20 };
	struct cftu_statistics statistics;
	unsigned int dead = 0;
	struct cftu_info info;
	int fd = open("/dev/cftu", O_RDWR);

	(void)argv;
	if (fd < 0 || argc > 1 || ioctl(fd, CFTU_STATISTICS, &statistics) ||
	    ioctl(fd, CFTU_REGION, &region) || ioctl(fd, CFTU_INFO, &info)) {
		perror("cftu-statistics");
		return 1;
	}
	SHOW(copies);
	SHOW(engine_bytes);
	SHOW(cpu_bytes);
	SHOW(failed_bytes);
	SHOW(off_bytes);
	SHOW(unpinned_bytes);
	SHOW(kernel_copies);
	SHOW(kernel_engine_bytes);
	SHOW(refused_bytes);
	SHOW(mismatches);
	SHOW(held_pages);
	for (unsigned int i = 0; i < info.channels; i++) {
		struct cftu_channel channel = { .channel = i };

		if (ioctl(fd, CFTU_CHANNEL, &channel)) {
			perror("CFTU_CHANNEL");
			return 1;
		}
		dead += !!(channel.flags & CFTU_DEAD);
	}
	printf("channels %u\n", info.channels);
	printf("dead %u\n", dead);
	printf("compares %d\n", !!(info.flags & CFTU_COMPARES));
	printf("stops %d\n", !!(info.flags & CFTU_STOPS));
	printf("min_bytes %llu\n", (unsigned long long)info.min_bytes);
	printf("policy %u\n", info.policy);
	printf("region %s\n", info.flags & CFTU_RESERVED ? "reserved" : "anywhere");
	return 0;
}
