// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * copytrace-missed: calls that sleep in copy_from_user() take all instances of its probe, and
 * further calls are missed. Which rings count them is printed: a ring of that function that
 * records meanwhile; one of the other function; and one of that function that begins later.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/copytrace.h"

/* FOLLOWED_PER_CPU of the module, and calls beyond its instances. */
#define INSTANCES_PER_CPU 64
#define BEYOND 40

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	_exit(1);
}

static int record(const char *path, __u32 cpu)
{
	int ring = open(path, O_RDWR);

	if (ring < 0 || ioctl(ring, COPYTRACE_CLAIM, &cpu) || ioctl(ring, COPYTRACE_START))
		die(path);
	return ring;
}

static unsigned long long missed(int ring)
{
	struct copytrace_counts counts;

	if (ioctl(ring, COPYTRACE_COUNTS, &counts))
		die("COPYTRACE_COUNTS");
	return counts.missed;
}

/* Sleeps in the copy of its argument until the page is there, which has zeros. */
static void *sleep_in_copy(void *page)
{
	syscall(SYS_nanosleep, page, NULL);
	return NULL;
}

int main(void)
{
	long size = getpagesize();
	long calls = INSTANCES_PER_CPU * sysconf(_SC_NPROCESSORS_CONF) + BEYOND;
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_zeropage zeros = {};
	pthread_t *threads = calloc(calls, sizeof(*threads));
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	int from, to, later;
	pthread_attr_t small;
	void *page;

	page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	range.range.start = zeros.range.start = (unsigned long)page;
	range.range.len = zeros.range.len = size;
	if (!threads || page == MAP_FAILED || faults < 0 || ioctl(faults, UFFDIO_API, &api) ||
	    ioctl(faults, UFFDIO_REGISTER, &range))
		die("userfaultfd");
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);

	from = record("/dev/copytrace/from_user", 0);
	for (long i = 0; i < calls; i++)
		if (pthread_create(&threads[i], &small, sleep_in_copy, page))
			die("pthread_create");
	while (missed(from) < BEYOND)
		usleep(1000);
	to = record("/dev/copytrace/to_user", 0);
	later = record("/dev/copytrace/from_user", 1);
	printf("from_user %s, to_user %llu, from_user later %s\n",
	       missed(from) >= BEYOND ? "all" : "too few", missed(to),
	       missed(later) < BEYOND ? "few" : "all");
	ioctl(from, COPYTRACE_STOP);
	ioctl(to, COPYTRACE_STOP);
	ioctl(later, COPYTRACE_STOP);
	if (ioctl(faults, UFFDIO_ZEROPAGE, &zeros))
		die("UFFDIO_ZEROPAGE");
	for (long i = 0; i < calls; i++)
		pthread_join(threads[i], NULL);

	/* Nothing is missed now: the probes are registered again, and all instances are free. */
	close(from);
	from = record("/dev/copytrace/from_user", 0);
	printf("from_user again %llu\n", missed(from));
	return 0;
}
