// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * switches CPU ROUNDS: two processes on CPU wake each other ROUNDS times through two
 * pipes, two switches per round. Prints the time of a switch, in ns.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void pass(int from, int to)
{
	char ball;

	if (read(from, &ball, 1) != 1 || write(to, &ball, 1) != 1)
		exit(1);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	long i, rounds = argc == 3 ? atol(argv[2]) : 0;
	int there[2], back[2];
	double begin;
	cpu_set_t cpu;

	if (rounds < 1)
		return 2;
	CPU_ZERO(&cpu);
	CPU_SET(atoi(argv[1]), &cpu);
	if (sched_setaffinity(0, sizeof(cpu), &cpu) || pipe(there) || pipe(back))
		return 1;
	if (!fork()) {
		for (i = 0; i < rounds; i++)
			pass(there[0], back[1]);
		return 0;
	}
	begin = seconds();
	if (write(there[1], "", 1) != 1)
		return 1;
	for (i = 1; i < rounds; i++)
		pass(back[0], there[1]);
	if (read(back[0], &(char){ 0 }, 1) != 1)
		return 1;
	printf("%.0f ns a switch\n", (seconds() - begin) * 1e9 / (2 * rounds));
	wait(NULL);
	return 0;
}
