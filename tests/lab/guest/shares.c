// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * shares MS KIND...: each CPU's share of the time when several are busy for MS milliseconds of
 * guest time. The first KIND is CPU 0's, and so on: u computes, s makes short system calls, - is
 * idle. A line for each busy CPU has its share and the longest time without progress; exit code
 * 1 if a share is less than nine tenths.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A step takes less than this while its CPU has no other work. */
#define STEP_NS 3000
/* All have started by then. */
#define START_NS 20000000

struct share {
	int64_t own_ns, away_ns;
};

static int64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void work(char kind, int zeros)
{
	char some[64];

	if (kind == 's') {
		if (read(zeros, some, sizeof(some)) < 0)
			_exit(1);
		return;
	}
	for (volatile int i = 0; i < 100; i++)
		;
}

static void be_busy(int cpu, char kind, int64_t from_ns, int64_t until_ns, struct share *share)
{
	int zeros = open("/dev/zero", O_RDONLY);
	int64_t last, at;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (zeros < 0 || sched_setaffinity(0, sizeof(set), &set))
		_exit(1);
	while (now_ns() < from_ns)
		;
	for (last = now_ns(); last < until_ns; last = at) {
		work(kind, zeros);
		at = now_ns();
		if (at - last < STEP_NS)
			share->own_ns += at - last;
		else if (at - last > share->away_ns)
			share->away_ns = at - last;
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	int64_t bytes = sizeof(struct share) * (argc + 1), ns, from_ns;
	struct share *shares;
	bool fair = true;

	if (argc < 3 || (ns = atoll(argv[1]) * 1000000) < 1) {
		fprintf(stderr, "usage: shares MS KIND...\n");
		return 2;
	}
	shares = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shares == MAP_FAILED)
		return 2;
	from_ns = now_ns() + START_NS;
	for (int i = 2; i < argc; i++) {
		if (argv[i][0] == '-')
			continue;
		if (!fork())
			be_busy(i - 2, argv[i][0], from_ns, from_ns + ns, &shares[i]);
	}
	for (int status; wait(&status) > 0;)
		if (status)
			return 2;
	for (int i = 2; i < argc; i++) {
		double percent = 100.0 * shares[i].own_ns / ns;

		if (argv[i][0] == '-')
			continue;
		printf("CPU %d (%s): %.1f %%, away for %lld us at most\n", i - 2, argv[i], percent,
		       (long long)shares[i].away_ns / 1000);
		fair &= percent > 90;
	}
	return !fair;
}
