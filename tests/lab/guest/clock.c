// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Measures CPUs that run at the same time, in a guest with four CPUs:
 *
 *	clock busy CPUS MS	 instructions per ns of that many busy loops
 *	clock late		 lateness of 1 ms FIFO wake-ups beside busy loops
 *	clock ping		 a round trip between CPU 0 and 1, by futex and by spinning
 *	clock sample EVENT PERIOD MS
 *				 PMU samples on four busy CPUs, against the periods counted
 */
#define _GNU_SOURCE
#include <err.h>
#include <linux/futex.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CPUS		4
#define WAKE_UPS	500
#define PERIOD_NS	1000000
#define ROUND_TRIPS	2000
#define RING_PAGES	64

static volatile int stop;
static volatile uint64_t loops[CPUS];

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void pin_to(long cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/* Instructions of each loop below: 47 pairs, and those around them as gcc 12 compiles it. */
#ifdef __aarch64__
#define INSTRUCTIONS	100
#else
#define INSTRUCTIONS	101
#endif

static void *keep_busy(void *cpu)
{
	pin_to((long)cpu);
	while (!stop) {
		uint64_t n = 47;

#ifdef __aarch64__
		asm volatile("1: subs %0, %0, #1\n\tb.ne 1b" : "+r"(n) : : "cc");
#else
		asm volatile("1: sub $1, %0\n\tjnz 1b" : "+r"(n) : : "cc");
#endif
		loops[(long)cpu]++;
	}
	return NULL;
}

static void start_busy(pthread_t *threads, int cpus)
{
	for (long cpu = 0; cpu < cpus; cpu++)
		pthread_create(&threads[cpu], NULL, keep_busy, (void *)cpu);
}

static void end_busy(pthread_t *threads, int cpus)
{
	stop = 1;
	for (int cpu = 0; cpu < cpus; cpu++)
		pthread_join(threads[cpu], NULL);
}

static void busy(int cpus, int ms)
{
	pthread_t threads[CPUS];
	int64_t start = now_ns(), ns;

	start_busy(threads, cpus);
	usleep(ms * 1000);
	end_busy(threads, cpus);
	ns = now_ns() - start;
	for (int cpu = 0; cpu < cpus; cpu++)
		printf("cpu%d: %.3f instructions a ns\n", cpu,
		       (double)loops[cpu] * INSTRUCTIONS / ns);
}

struct lateness {
	long cpu;
	int64_t sum, max;
	int missed;
};

static void *wake_up(void *arg)
{
	struct sched_param priority = { .sched_priority = 50 };
	struct lateness *l = arg;
	int64_t next;

	pin_to(l->cpu);
	pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority);
	next = now_ns();
	for (int i = 0; i < WAKE_UPS; i++) {
		struct timespec t;
		int64_t late;

		next += PERIOD_NS;
		t.tv_sec = next / 1000000000;
		t.tv_nsec = next % 1000000000;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
		late = now_ns() - next;
		l->sum += late;
		if (late > l->max)
			l->max = late;
		l->missed += late > PERIOD_NS;
	}
	return NULL;
}

static void late(void)
{
	pthread_t threads[CPUS], sleepers[CPUS];
	struct lateness l[CPUS] = {};

	start_busy(threads, CPUS);
	usleep(20000);
	for (int cpu = 0; cpu < CPUS; cpu++) {
		l[cpu].cpu = cpu;
		pthread_create(&sleepers[cpu], NULL, wake_up, &l[cpu]);
	}
	for (int cpu = 0; cpu < CPUS; cpu++)
		pthread_join(sleepers[cpu], NULL);
	end_busy(threads, CPUS);
	for (int cpu = 0; cpu < CPUS; cpu++)
		printf("cpu%d: %.2f us late, %.2f us at most, %d of %d missed\n", cpu,
		       l[cpu].sum / 1e3 / WAKE_UPS, l[cpu].max / 1e3, l[cpu].missed, WAKE_UPS);
}

static int word;
static int spinning;

/* Waits until the word is @value, then increments it. */
static void answer(int value)
{
	int seen;

	while ((seen = __atomic_load_n(&word, __ATOMIC_ACQUIRE)) != value)
		if (!spinning)
			syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
	__atomic_store_n(&word, value + 1, __ATOMIC_RELEASE);
	if (!spinning)
		syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void *pong(void *unused)
{
	pin_to(1);
	for (int i = 0; i < ROUND_TRIPS; i++)
		answer(2 * i + 1);
	return unused;
}

static void ping(void)
{
	pin_to(0);
	for (spinning = 0; spinning < 2; spinning++) {
		pthread_t thread;
		int64_t start;

		word = 0;
		pthread_create(&thread, NULL, pong, NULL);
		usleep(5000);
		start = now_ns();
		for (int i = 0; i < ROUND_TRIPS; i++)
			answer(2 * i);
		pthread_join(thread, NULL);
		printf("%s: %lld ns a round trip\n", spinning ? "spinning" : "futex",
		       (long long)(now_ns() - start) / ROUND_TRIPS);
	}
}

static void write_setting(const char *path, const char *value)
{
	FILE *f = fopen(path, "w");

	if (!f)
		err(1, "%s", path);
	fputs(value, f);
	fclose(f);
}

struct samples {
	int taken, other;
	uint64_t min, max;
};

/* The records of a ring that has not wrapped. */
static struct samples read_ring(char *ring)
{
	uint64_t end = ((struct perf_event_mmap_page *)ring)->data_head;
	struct samples s = { .min = UINT64_MAX };
	uint64_t last = 0;

	if (end > RING_PAGES * 4096)
		errx(1, "more samples than the ring holds: give fewer MS");
	for (uint64_t at = 0; at < end;) {
		struct perf_event_header *h = (void *)(ring + 4096 + at);
		uint64_t time = *(uint64_t *)(h + 1);

		at += h->size;
		if (h->type != PERF_RECORD_SAMPLE) {
			s.other++;
			continue;
		}
		s.taken++;
		if (last && time - last < s.min)
			s.min = time - last;
		if (last && time - last > s.max)
			s.max = time - last;
		last = time;
	}
	return s;
}

static void sample(int event, uint64_t period, int ms)
{
	struct perf_event_attr a = {
		.size = sizeof(a), .type = PERF_TYPE_RAW, .config = event,
		.sample_period = period, .sample_type = PERF_SAMPLE_TIME,
		.disabled = 1, .pinned = 1,
		.use_clockid = 1, .clockid = CLOCK_MONOTONIC_RAW,
	};
	pthread_t threads[CPUS];
	char *ring[CPUS];
	int fd[CPUS];

	/* perf would throttle otherwise; in this order. */
	write_setting("/proc/sys/kernel/perf_event_max_sample_rate", "1000000");
	write_setting("/proc/sys/kernel/perf_cpu_time_max_percent", "100");
	start_busy(threads, CPUS);
	usleep(20000);
	for (int cpu = 0; cpu < CPUS; cpu++) {
		fd[cpu] = syscall(SYS_perf_event_open, &a, -1, cpu, -1, 0);
		if (fd[cpu] < 0)
			err(1, "perf_event_open");
		ring[cpu] = mmap(NULL, (RING_PAGES + 1) * 4096, PROT_READ | PROT_WRITE,
				 MAP_SHARED, fd[cpu], 0);
		if (ring[cpu] == MAP_FAILED)
			err(1, "mmap");
	}
	for (int cpu = 0; cpu < CPUS; cpu++)
		ioctl(fd[cpu], PERF_EVENT_IOC_ENABLE, 0);
	usleep(ms * 1000);
	for (int cpu = 0; cpu < CPUS; cpu++)
		ioctl(fd[cpu], PERF_EVENT_IOC_DISABLE, 0);
	end_busy(threads, CPUS);
	for (int cpu = 0; cpu < CPUS; cpu++) {
		struct samples s = read_ring(ring[cpu]);
		uint64_t count, whole;

		if (read(fd[cpu], &count, sizeof(count)) != sizeof(count))
			err(1, "read");
		/* A sample for each whole period: how many there are depends on when the main
		 * thread gets to run. */
		whole = count / period;
		printf("cpu%d: %d samples of %llu whole periods, %lld missed, %d other records, %llu events, %llu to %llu ns apart\n",
		       cpu, s.taken, (unsigned long long)whole, (long long)whole - s.taken, s.other,
		       (unsigned long long)count, (unsigned long long)s.min,
		       (unsigned long long)s.max);
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "busy") && argc == 4 && atoi(argv[2]) <= CPUS)
		busy(atoi(argv[2]), atoi(argv[3]));
	else if (!strcmp(what, "late") && argc == 2)
		late();
	else if (!strcmp(what, "ping") && argc == 2)
		ping();
	else if (!strcmp(what, "sample") && argc == 5)
		sample(strtol(argv[2], NULL, 0), strtoull(argv[3], NULL, 0), atoi(argv[4]));
	else
		errx(2, "usage: clock busy CPUS MS | late | ping | sample EVENT PERIOD MS");
	return 0;
}
