// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * wakeups: on each CPU a task that computes, and a SCHED_FIFO task that wants to wake up
 * each millisecond, 500 times. A line for each CPU: how late it was on average and at
 * most, and how often by a whole millisecond or more ("missed").
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TIMES 500
#define PERIOD_NS 1000000

static int64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static pid_t on_cpu(int cpu)
{
	pid_t child = fork();
	cpu_set_t set;

	if (child)
		return child;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		_exit(1);
	return 0;
}

static void wake_up(int cpu)
{
	const struct sched_param parameters = { .sched_priority = 80 };
	int64_t next = now_ns() + PERIOD_NS, sum = 0, most = 0;
	int missed = 0;

	if (sched_setscheduler(0, SCHED_FIFO, &parameters))
		_exit(1);
	for (int i = 0; i < TIMES; i++, next += PERIOD_NS) {
		const struct timespec at = { next / 1000000000, next % 1000000000 };
		int64_t late;

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
		late = now_ns() - next;
		sum += late;
		if (late > most)
			most = late;
		missed += late >= PERIOD_NS;
	}
	printf("CPU %d: %d wake-ups, %d missed, %lld ns late on average, %lld at most\n", cpu, TIMES,
	       missed, (long long)sum / TIMES, (long long)most);
	fflush(stdout);
	_exit(0);
}

int main(void)
{
	int cpus = sysconf(_SC_NPROCESSORS_ONLN), bad = 0;
	pid_t *busy = calloc(cpus, sizeof(*busy)), *awake = calloc(cpus, sizeof(*awake));

	if (!busy || !awake)
		return 2;
	for (int cpu = 0; cpu < cpus; cpu++) {
		busy[cpu] = on_cpu(cpu);
		if (!busy[cpu])
			for (;;)
				;
	}
	for (int cpu = 0; cpu < cpus; cpu++) {
		awake[cpu] = on_cpu(cpu);
		if (!awake[cpu])
			wake_up(cpu);
	}
	for (int cpu = 0; cpu < cpus; cpu++) {
		int status;

		if (waitpid(awake[cpu], &status, 0) < 0 || status)
			bad = 1;
	}
	for (int cpu = 0; cpu < cpus; cpu++)
		kill(busy[cpu], SIGKILL);
	return bad;
}
