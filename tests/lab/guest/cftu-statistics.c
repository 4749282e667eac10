// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-statistics: what cftu has done, a line "name value" for each of struct
 * cftu_statistics' fields that a test asks for, and its flags.
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
	printf("min_bytes %llu\n", (unsigned long long)info.min_bytes);
	printf("policy %u\n", info.policy);
	printf("region %s\n", info.flags & CFTU_RESERVED ? "reserved" : "anywhere");
	return 0;
}
