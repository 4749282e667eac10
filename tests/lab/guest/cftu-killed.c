// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-killed WAY: a process is killed during a long copy. Prints how many bytes were copied.
 *
 *   engine  by a low channel, which the priority policy lets copy for 1 ms of each 201 ms
 *   pinned  the same of pinned memory
 *   cpu     by the CPU
 *   off     of pinned memory, while the policy is off
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/cftu.h"

/* Some 7 s by the low channel. */
#define SLOW_BYTES (2UL << 20)
/* Some hundredths of a second by the CPU. */
#define FAST_BYTES (128UL << 20)

static int device;

static void die(const char *what)
{
	perror(what);
	_exit(2);
}

static struct cftu_statistics statistics(void)
{
	struct cftu_statistics all;

	if (ioctl(device, CFTU_STATISTICS, &all))
		die("CFTU_STATISTICS");
	return all;
}

static void copy(unsigned long bytes, int engine, int pinned)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	struct cftu_region region = { .bytes = bytes };
	struct cftu_pin pin = { .address = (uintptr_t)memory, .bytes = bytes };
	struct cftu_copy copy = {
		.address = (uintptr_t)memory,
		.bytes = bytes,
		.direction = CFTU_FROM_USER,
		.engine = engine,
	};

	if (memory == MAP_FAILED || ioctl(device, CFTU_REGION, &region) ||
	    (pinned && ioctl(device, CFTU_PIN, &pin)))
		die("memory");
	copy.pin = pin.id;
	if (ioctl(device, CFTU_COPY, &copy))
		die("CFTU_COPY");
}

int main(int argc, char **argv)
{
	const char *way = argc == 2 ? argv[1] : "";
	int slow = !strcmp(way, "engine") || !strcmp(way, "pinned"), off = !strcmp(way, "off");
	int pinned = off || !strcmp(way, "pinned"), by_cpu = !strcmp(way, "cpu"), status;
	struct cftu_policy policy = { .policy = CFTU_POLICY_OFF };
	unsigned long bytes = slow ? SLOW_BYTES : FAST_BYTES;
	struct cftu_statistics before, after;
	cpu_set_t first;
	pid_t child;

	if (slow)
		policy = (struct cftu_policy){
			.policy = CFTU_POLICY_PRIORITY,
			.quantum_high_ns = 200000000,
			.quantum_low_ns = 1000000,
			.high = 1 << 1,
		};
	device = open("/dev/cftu", O_RDWR);
	if (!(slow || off || by_cpu) || device < 0 || ioctl(device, CFTU_POLICY, &policy)) {
		perror("cftu-killed");
		return 2;
	}
	before = statistics();
	child = fork();
	if (!child) {
		/* The first CPU's channel is low. */
		CPU_ZERO(&first);
		CPU_SET(0, &first);
		if (sched_setaffinity(0, sizeof(first), &first))
			die("sched_setaffinity");
		copy(bytes, by_cpu ? CFTU_CPU : CFTU_DMA, pinned);
		_exit(0);
	}
	while (statistics().copies == before.copies)
		if (waitpid(child, &status, WNOHANG)) {
			printf("there was no copy\n");
			return 1;
		}
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	after = statistics();
	after.engine_bytes += after.cpu_bytes - before.engine_bytes - before.cpu_bytes;
	printf("%s: %lu bytes, %llu of them copied, then %s\n", way, bytes,
	       (unsigned long long)after.engine_bytes,
	       WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? "killed" : "ended");
	return after.engine_bytes > bytes / 2;
}
