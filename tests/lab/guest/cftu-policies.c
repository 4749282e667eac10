// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-policies exclusive | shared | priority HIGH_NS LOW_NS [CHANNELS] | switch TIMES:
 * copies on all CPUs at once, and the channels' counts meanwhile.
 *
 *   exclusive  a line for each CPU: the channels that its copies used
 *   shared     a line for each channel: its transfers
 *   priority   the share of time, in %, for which low channels were held back (the high
 *              channel is the first, or CHANNELS, a bit each), and the bytes that high
 *              and low channels copied
 *   switch     sets policies in turn, TIMES times, while all CPUs copy
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/cftu.h"

#define CPUS_MAX 64
#define BYTES 65536
#define COPIES 200
/* Number of the priority policy's windows: one more or less is less than two per cent. */
#define WINDOWS 60

static long cpus;
static atomic_int stop;
static uint64_t taken[CPUS_MAX];

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	_exit(1);
}

static int device(void)
{
	int fd = open("/dev/cftu", O_RDWR);

	if (fd < 0)
		die("/dev/cftu");
	return fd;
}

/* Copies on CPU @cpu until @copies are done, or until the stop flag is set. */
static void copy_on(long cpu, long copies)
{
	struct cftu_region region = { .bytes = BYTES };
	struct cftu_pin pin = { .bytes = BYTES, .flags = CFTU_WRITABLE };
	unsigned char *user;
	cpu_set_t set;
	int fd = device();

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
	user = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	pin.address = (uintptr_t)user;
	if (user == MAP_FAILED || ioctl(fd, CFTU_REGION, &region) || ioctl(fd, CFTU_PIN, &pin))
		die("memory to copy");
	for (long i = 0; i < copies && !stop; i++) {
		struct cftu_copy copy = {
			.address = pin.address,
			.bytes = BYTES,
			.direction = i % 2,
			.engine = CFTU_DMA,
			.pin = pin.id,
		};

		if (ioctl(fd, CFTU_COPY, &copy) || copy.not_copied)
			die("CFTU_COPY");
		if (copy.channel < 64)
			taken[cpu] |= 1ULL << copy.channel;
	}
	close(fd);
}

static void *copy_some(void *cpu)
{
	copy_on((long)cpu, COPIES);
	return NULL;
}

static void *copy_on_and_on(void *cpu)
{
	copy_on((long)cpu, INT64_MAX);
	return NULL;
}

static void start(pthread_t *threads, void *(*go)(void *))
{
	for (long cpu = 0; cpu < cpus; cpu++)
		if (pthread_create(&threads[cpu], NULL, go, (void *)cpu))
			die("pthread_create");
}

static void join(const pthread_t *threads)
{
	for (long cpu = 0; cpu < cpus; cpu++)
		pthread_join(threads[cpu], NULL);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static void set_policy(int fd, const struct cftu_policy *policy)
{
	if (ioctl(fd, CFTU_POLICY, policy))
		die("CFTU_POLICY");
}

static struct cftu_channel channel(int fd, unsigned int number)
{
	struct cftu_channel channel = { .channel = number };

	if (ioctl(fd, CFTU_CHANNEL, &channel))
		die("CFTU_CHANNEL");
	return channel;
}

static void priority(int fd, unsigned int channels, uint64_t high_ns, uint64_t low_ns,
		     uint64_t high_channels)
{
	const struct cftu_policy policy = {
		.policy = CFTU_POLICY_PRIORITY,
		.flags = CFTU_FOLD,
		.quantum_high_ns = high_ns,
		.quantum_low_ns = low_ns,
		.high = high_channels,
	};
	uint64_t time_ns = WINDOWS * (high_ns + low_ns), began;
	const struct timespec time = { time_ns / 1000000000, time_ns % 1000000000 };
	struct cftu_channel before[CPUS_MAX], after;
	pthread_t threads[CPUS_MAX];
	uint64_t paused = 0, high = 0, low = 0;
	unsigned int lows = 0;

	set_policy(fd, &policy);
	start(threads, copy_on_and_on);
	/* Wait until all threads copy. */
	usleep(20000);
	began = now_ns();
	for (unsigned int i = 0; i < channels; i++)
		before[i] = channel(fd, i);
	nanosleep(&time, NULL);
	time_ns = now_ns() - began;
	for (unsigned int i = 0; i < channels; i++) {
		after = channel(fd, i);
		if (after.flags & CFTU_HIGH) {
			high += after.bytes - before[i].bytes;
			continue;
		}
		lows++;
		low += after.bytes - before[i].bytes;
		paused += after.paused_ns - before[i].paused_ns;
	}
	stop = 1;
	join(threads);
	printf("kept back %.1f %%, high %llu, low %llu\n", 100.0 * paused / lows / time_ns,
	       (unsigned long long)high, (unsigned long long)low);
}

static void switch_policies(int fd, long times)
{
	pthread_t threads[CPUS_MAX];
	struct cftu_policy policy = { .flags = CFTU_FOLD };
	struct cftu_statistics statistics;

	start(threads, copy_on_and_on);
	for (long i = 0; i < times; i++) {
		policy.policy = i % 4;
		set_policy(fd, &policy);
	}
	stop = 1;
	join(threads);
	if (ioctl(fd, CFTU_STATISTICS, &statistics))
		die("CFTU_STATISTICS");
	printf("%ld times, %llu copies meanwhile\n", times, (unsigned long long)statistics.copies);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	pthread_t threads[CPUS_MAX];
	uint64_t transfers[CFTU_CHANNELS_MAX];
	struct cftu_policy policy = {};
	struct cftu_info info;
	int fd = device();

	cpus = sysconf(_SC_NPROCESSORS_ONLN);
	if (ioctl(fd, CFTU_INFO, &info))
		die("CFTU_INFO");
	if (!strcmp(what, "exclusive") && argc == 2) {
		policy.policy = CFTU_POLICY_EXCLUSIVE;
		set_policy(fd, &policy);
		start(threads, copy_some);
		join(threads);
		for (long cpu = 0; cpu < cpus; cpu++)
			printf("cpu %ld channels %llx\n", cpu, (unsigned long long)taken[cpu]);
	} else if (!strcmp(what, "shared") && argc == 2) {
		policy.policy = CFTU_POLICY_SHARED;
		set_policy(fd, &policy);
		for (unsigned int i = 0; i < info.channels; i++)
			transfers[i] = channel(fd, i).transfers;
		start(threads, copy_some);
		join(threads);
		for (unsigned int i = 0; i < info.channels; i++)
			printf("channel %u transfers %llu\n", i,
			       (unsigned long long)(channel(fd, i).transfers - transfers[i]));
	} else if (!strcmp(what, "priority") && (argc == 4 || argc == 5)) {
		priority(fd, info.channels, atoll(argv[2]), atoll(argv[3]),
			 argc == 5 ? strtoull(argv[4], NULL, 0) : 1);
	} else if (!strcmp(what, "switch") && argc == 3) {
		switch_policies(fd, atol(argv[2]));
	} else {
		fprintf(stderr, "usage: cftu-policies exclusive | shared | priority HIGH_NS LOW_NS [CHANNELS] | switch TIMES\n");
		return 2;
	}
	return 0;
}
