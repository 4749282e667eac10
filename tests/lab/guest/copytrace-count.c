// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * copytrace-count count N | overflow N | rate MS | cost N | requests N |
 * hold S | addresses N: compares copytrace's rings with copies whose number is known.
 *
 *   count     N times on each CPU uname(), adjtimex() and a signal. Prints a line for each
 *             kind of copy that only these make: function, bytes, number recorded, number
 *             expected. Readers empty the rings meanwhile.
 *   overflow  N signals without a reader: records taken and dropped, and the copies of a signal
 *   rate      copies on all CPUs at full speed, with a reader on each
 *   cost      the extra time of a traced copy, in ns, over N copies of 390 bytes
 *   hold      claims all rings for S seconds
 *   addresses callers recorded for N calls of uname(), with CAP_PERFMON and without
 *   requests  N random requests on files in any state
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/copytrace.h"

#define FUNCTIONS 4
#define CPUS_MAX 64
/* Sizes of struct new_utsname, of struct __kernel_timex, and of the vector registers. */
#define UNAME_BYTES 390
#define TIMEX_BYTES 208
#define VECTORS_BYTES 512

static const char *const names[FUNCTIONS] = { "from_user", "to_user", "__from_user", "__to_user" };

static long cpus;
static struct copytrace_info info;

static struct ring {
	int fd;
	struct copytrace_reader *reader;
	const struct copytrace_record *records;
	uint64_t read;
	/* Counts by size; larger sizes are not counted. */
	uint64_t of_bytes[VECTORS_BYTES + 1];
} rings[CPUS_MAX][FUNCTIONS];

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	_exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static void pin_to(long cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
}

static void open_rings(void)
{
	char path[64];

	for (long cpu = 0; cpu < cpus; cpu++) {
		for (int i = 0; i < FUNCTIONS; i++) {
			struct ring *ring = &rings[cpu][i];
			__u32 wanted = cpu;

			snprintf(path, sizeof(path), "/dev/copytrace/%s", names[i]);
			ring->fd = open(path, O_RDWR);
			if (ring->fd < 0 || ioctl(ring->fd, COPYTRACE_INFO, &info) ||
			    ioctl(ring->fd, COPYTRACE_CLAIM, &wanted))
				die(path);
			ring->reader = mmap(NULL, info.ring_bytes, PROT_READ | PROT_WRITE,
					    MAP_SHARED, ring->fd, 0);
			if (ring->reader == MAP_FAILED)
				die("mmap");
			ring->records = (void *)((char *)ring->reader + info.records_at);
			ring->read = 0;
			memset(ring->of_bytes, 0, sizeof(ring->of_bytes));
		}
	}
}

static void close_rings(void)
{
	for (long cpu = 0; cpu < cpus; cpu++)
		for (int i = 0; i < FUNCTIONS; i++) {
			munmap(rings[cpu][i].reader, info.ring_bytes);
			close(rings[cpu][i].fd);
		}
}

static void all_rings(unsigned long request)
{
	for (long cpu = 0; cpu < cpus; cpu++)
		for (int i = 0; i < FUNCTIONS; i++)
			if (ioctl(rings[cpu][i].fd, request))
				die(request == COPYTRACE_START ? "COPYTRACE_START" :
				    request == COPYTRACE_STOP  ? "COPYTRACE_STOP" :
								 "COPYTRACE_CLOSE");
}

static void read_ring(struct ring *ring)
{
	for (;;) {
		const struct copytrace_record *record =
			&ring->records[ring->read % info.records];

		if (__atomic_load_n(&record->sequence, __ATOMIC_ACQUIRE) != ring->read + 1)
			return;
		if (record->bytes <= VECTORS_BYTES)
			ring->of_bytes[record->bytes]++;
		if (record->after < record->before || !record->caller) {
			fprintf(stderr, "a record from %llu to %llu, of %llx\n", record->before,
			       record->after, record->caller);
			_exit(1);
		}
		ring->read++;
		__atomic_store_n(&ring->reader->tail, ring->read, __ATOMIC_RELEASE);
	}
}

static void nothing(int signal)
{
	(void)signal;
}

static void copies(long times)
{
	struct timex timex = {};
	struct utsname name;

	while (times--) {
		uname(&name);
		adjtimex(&timex);
		raise(SIGUSR1);
	}
}

static long times;
static atomic_int stop;

static void *copy_on(void *cpu)
{
	pin_to((long)cpu);
	copies(times);
	return NULL;
}

/* The shortest way to a copy: clock_getres() writes 16 bytes. */
static void *copy_on_and_on(void *cpu)
{
	struct timespec unused;

	pin_to((long)cpu);
	while (!stop)
		syscall(SYS_clock_getres, CLOCK_MONOTONIC, &unused);
	return NULL;
}

static void *read_on(void *cpu)
{
	struct pollfd polled[FUNCTIONS];

	pin_to((long)cpu);
	while (!stop) {
		for (int i = 0; i < FUNCTIONS; i++)
			polled[i] = (struct pollfd){ .fd = rings[(long)cpu][i].fd, .events = POLLIN };
		if (poll(polled, FUNCTIONS, 20) < 0)
			die("poll");
		for (int i = 0; i < FUNCTIONS; i++)
			read_ring(&rings[(long)cpu][i]);
	}
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

/* A function's counts over all rings; all records have been read. */
static struct copytrace_counts counts(int function)
{
	struct copytrace_counts sum = {}, counts;

	for (long cpu = 0; cpu < cpus; cpu++) {
		struct ring *ring = &rings[cpu][function];

		read_ring(ring);
		if (ioctl(ring->fd, COPYTRACE_COUNTS, &counts))
			die("COPYTRACE_COUNTS");
		if (counts.recorded != ring->read) {
			fprintf(stderr, "%llu recorded, %llu read\n", counts.recorded,
			       (unsigned long long)ring->read);
			_exit(1);
		}
		sum.recorded += counts.recorded;
		sum.dropped += counts.dropped;
		sum.missed = counts.missed;
	}
	return sum;
}

static void show(int function, unsigned int bytes, long made)
{
	unsigned long long seen = 0;

	/* If they cannot be distinguished, they count with the others. */
	if (info.flags & COPYTRACE_MERGED)
		function %= 2;
	for (long cpu = 0; cpu < cpus; cpu++)
		seen += rings[cpu][function].of_bytes[bytes];
	printf("%s %u: %llu of %ld\n", names[function], bytes, seen, made);
}

static void count(void)
{
	pthread_t threads[CPUS_MAX], readers[CPUS_MAX];
	struct copytrace_counts sum = {}, one;
	struct utsname name;

	open_rings();
	all_rings(COPYTRACE_START);
	start(readers, read_on);
	start(threads, copy_on);
	join(threads);
	all_rings(COPYTRACE_CLOSE);
	/* These come after the close, and must not be counted. */
	for (int i = 0; i < 100; i++)
		uname(&name);
	all_rings(COPYTRACE_STOP);
	stop = 1;
	join(readers);
	for (int i = 0; i < FUNCTIONS; i++) {
		one = counts(i);
		sum.recorded += one.recorded;
		sum.dropped += one.dropped;
		sum.missed += one.missed;
	}
	show(1, UNAME_BYTES, times * cpus);
	show(0, TIMEX_BYTES, times * cpus);
	show(1, TIMEX_BYTES, times * cpus);
	show(2, VECTORS_BYTES, times * cpus);
	show(3, VECTORS_BYTES, times * cpus);
	printf("recorded %llu dropped %llu missed %llu\n", sum.recorded, sum.dropped, sum.missed);
	close_rings();
}

static void signals(long number)
{
	pin_to(0);
	open_rings();
	all_rings(COPYTRACE_START);
	while (number--)
		raise(SIGUSR1);
	all_rings(COPYTRACE_STOP);
}

static void overflow(void)
{
	struct copytrace_counts few, many;
	unsigned long long each;
	int function;

	/* The records that fit the ring show how many copies one signal makes. */
	signals(8);
	function = info.flags & COPYTRACE_MERGED ? 0 : 2;
	few = counts(function);
	each = few.recorded / 8;
	close_rings();
	signals(times);
	many = counts(function);
	printf("a signal copies %llu times; recorded %llu + dropped %llu = %llu of %llu\n", each,
	       many.recorded, many.dropped, many.recorded + many.dropped, each * times);
	close_rings();
}

static void rate(long ms)
{
	pthread_t threads[CPUS_MAX], readers[CPUS_MAX];
	struct copytrace_counts sum = {}, one;
	uint64_t began, took;

	open_rings();
	start(readers, read_on);
	start(threads, copy_on_and_on);
	began = now_ns();
	all_rings(COPYTRACE_START);
	usleep(ms * 1000);
	all_rings(COPYTRACE_CLOSE);
	took = now_ns() - began;
	all_rings(COPYTRACE_STOP);
	stop = 1;
	join(threads);
	join(readers);
	for (int i = 0; i < FUNCTIONS; i++) {
		one = counts(i);
		sum.recorded += one.recorded;
		sum.dropped += one.dropped;
	}
	printf("%llu records a second, dropped %llu of %llu\n",
	       (unsigned long long)(sum.recorded * 1000000000.0 / took), sum.dropped,
	       sum.recorded + sum.dropped);
	close_rings();
}

static double ns_a_copy(void)
{
	struct utsname name;
	uint64_t best = UINT64_MAX;

	for (int trial = 0; trial < 5; trial++) {
		uint64_t began = now_ns(), took;

		for (long i = 0; i < times; i++)
			uname(&name);
		took = now_ns() - began;
		best = took < best ? took : best;
	}
	return (double)best / times;
}

static void cost(void)
{
	double without, with;

	pin_to(0);
	ns_a_copy();
	without = ns_a_copy();
	open_rings();
	all_rings(COPYTRACE_START);
	with = ns_a_copy();
	all_rings(COPYTRACE_STOP);
	printf("uname: %.1f ns, traced %.1f ns: %.1f more\n", without, with, with - without);
	close_rings();
}

/* Number of records with a caller's address. */
static void callers(const char *who)
{
	long told = 0, all = 0;
	struct utsname name;

	pin_to(0);
	open_rings();
	all_rings(COPYTRACE_START);
	for (long i = 0; i < times; i++)
		uname(&name);
	all_rings(COPYTRACE_STOP);
	for (; rings[0][1].records[all % info.records].sequence == (uint64_t)all + 1; all++)
		told += rings[0][1].records[all % info.records].caller != 0;
	printf("%s: %s, callers of %s records told\n", who,
	       info.flags & COPYTRACE_NO_ADDRESSES ? "no addresses" : "addresses",
	       all < times ? "too few" : told == all ? "all" : told ? "some" : "no");
	close_rings();
}

static void addresses(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	callers("with CAP_PERFMON");
	if (syscall(SYS_capget, &header, data))
		die("capget");
	data[CAP_PERFMON / 32].effective &= ~(1u << CAP_PERFMON % 32);
	data[CAP_SYS_ADMIN / 32].effective &= ~(1u << CAP_SYS_ADMIN % 32);
	if (syscall(SYS_capset, &header, data))
		die("capset");
	callers("without");
}

static void requests(long number)
{
	static const unsigned long known[] = { COPYTRACE_INFO, COPYTRACE_CLAIM, COPYTRACE_START,
					       COPYTRACE_CLOSE, COPYTRACE_STOP, COPYTRACE_COUNTS };
	long taken = 0;

	srandom(number);
	for (long i = 0; i < number;) {
		char path[64];
		char *map = MAP_FAILED;
		size_t bytes = (random() % 4) * getpagesize();
		int fd;

		snprintf(path, sizeof(path), "/dev/copytrace/%s", names[random() % FUNCTIONS]);
		fd = open(path, O_RDWR);
		if (fd < 0)
			die(path);
		ioctl(fd, COPYTRACE_INFO, &info);
		for (int some = random() % 16; some >= 0; some--, i++) {
			__u64 argument[8] = { random() % 3 ? (__u64)(random() % (cpus + 1)) :
							     (__u64)random() << 32 };
			struct pollfd polled = { .fd = fd, .events = POLLIN };

			switch (random() % 8) {
			case 0:
				taken += !ioctl(fd, random() << 16 ^ random(), argument);
				break;
			case 1:
				taken += !ioctl(fd, known[random() % 6], random());
				break;
			case 2:
				poll(&polled, 1, 0);
				break;
			case 3:
				if (map != MAP_FAILED)
					munmap(map, info.ring_bytes);
				map = mmap(NULL, random() % 2 ? info.ring_bytes : bytes,
					   PROT_READ | PROT_WRITE, MAP_SHARED, fd,
					   random() % 4 ? 0 : getpagesize());
				/* Values that a reader may write, and invalid ones. */
				if (map != MAP_FAILED)
					for (int at = 0; at < 2; at++)
						((__u64 *)map)[random() % 1024] = random();
				break;
			default:
				taken += !ioctl(fd, known[random() % 6], argument);
			}
		}
		if (map != MAP_FAILED)
			munmap(map, info.ring_bytes);
		close(fd);
	}
	printf("%ld requests, %ld of them taken\n", number, taken);
}

int main(int argc, char **argv)
{
	const char *what = argc == 3 ? argv[1] : "";
	struct sigaction action = { .sa_handler = nothing };

	cpus = sysconf(_SC_NPROCESSORS_ONLN);
	sigaction(SIGUSR1, &action, NULL);
	times = argc == 3 ? atol(argv[2]) : 0;
	if (!strcmp(what, "count"))
		count();
	else if (!strcmp(what, "overflow"))
		overflow();
	else if (!strcmp(what, "rate"))
		rate(times);
	else if (!strcmp(what, "cost"))
		cost();
	else if (!strcmp(what, "addresses"))
		addresses();
	else if (!strcmp(what, "hold")) {
		open_rings();
		sleep(times);
	} else if (!strcmp(what, "requests"))
		requests(times);
	else {
		fprintf(stderr, "usage: copytrace-count count N | overflow N | rate MS | cost N | requests N | hold S | addresses N\n");
		return 2;
	}
	return 0;
}
