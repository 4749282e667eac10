// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-disturbed COPIES: copies by the engine while the memory that they touch is
 * unmapped and mapped, the process forks and a signal comes each millisecond. A copy
 * of memory that stays mapped must be complete; a copy of memory that is unmapped may
 * stop, but must not contain bytes from elsewhere. The first wrong copy prints a line
 * and ends with exit code 1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/cftu.h"

#define AREA (256 * 1024)
#define PAGE 4096
/* The content that copies write to the area that is unmapped and mapped; else it is zero. */
#define MARK 0xa5

static long copies;
static unsigned char *going;
static atomic_int ended;
static atomic_long alarms, forks, stopped;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	_exit(1);
}

static int new_file(void)
{
	struct cftu_region region = { .bytes = AREA };
	int fd = open("/dev/cftu", O_RDWR | O_CLOEXEC);

	if (fd < 0 || ioctl(fd, CFTU_REGION, &region))
		die("/dev/cftu");
	return fd;
}

static uint64_t copy(int fd, void *user, long bytes, int direction, int engine)
{
	struct cftu_copy request = {
		.address = (uintptr_t)user,
		.bytes = bytes,
		.direction = direction,
		.engine = engine,
	};

	if (ioctl(fd, CFTU_COPY, &request))
		die("CFTU_COPY");
	return request.not_copied;
}

static void *new_area(void)
{
	void *area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (area == MAP_FAILED)
		die("mmap");
	return area;
}

/* Memory that stays mapped: to the kernel and back, with new content each time. */
static void *whole(void *unused)
{
	unsigned char *given = new_area(), *taken = new_area();
	int fd = new_file();

	(void)unused;
	for (long i = 0; i < copies; i++) {
		long bytes = 1 + i * 7919 % AREA;

		memset(given, 1 + i % 250, bytes);
		memset(taken, 0, bytes);
		if (copy(fd, given, bytes, CFTU_FROM_USER, CFTU_DMA) ||
		    copy(fd, taken, bytes, CFTU_TO_USER, CFTU_DMA)) {
			fprintf(stderr, "copy %ld of %ld bytes stopped\n", i, bytes);
			_exit(1);
		}
		if (memcmp(given, taken, bytes)) {
			fprintf(stderr, "copy %ld of %ld bytes differs\n", i, bytes);
			_exit(1);
		}
	}
	return NULL;
}

/* Memory that is unmapped and mapped. */
static void *torn(void *unused)
{
	unsigned char *seen = new_area();
	int fd = new_file();

	(void)unused;
	memset(seen, MARK, AREA);
	for (long i = 0; i < copies; i++) {
		long bytes = 1 + i * 4243 % AREA;
		uint64_t left;

		if (copy(fd, seen, AREA, CFTU_FROM_USER, CFTU_CPU))
			die("marking the region");
		left = copy(fd, going, bytes, CFTU_TO_USER, CFTU_DMA);
		left += copy(fd, going, bytes, CFTU_FROM_USER, CFTU_DMA);
		if (left)
			stopped++;
		if (copy(fd, seen, bytes, CFTU_TO_USER, CFTU_CPU))
			die("looking at the region");
		for (long at = 0; at < bytes; at++)
			if (seen[at] != 0 && seen[at] != MARK) {
				fprintf(stderr, "copy %ld: byte %ld is %x\n", i, at, seen[at]);
				_exit(1);
			}
		memset(seen, MARK, AREA);
	}
	return NULL;
}

static void *unmap_and_map(void *unused)
{
	uint64_t random = 1;

	(void)unused;
	while (!ended) {
		unsigned char *at;

		random = random * 6364136223846793005u + 1442695040888963407u;
		at = going + (random >> 33) % (AREA / PAGE) * PAGE;
		munmap(at, PAGE);
		usleep(50);
		if (mmap(at, PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
			die("mmap");
	}
	return NULL;
}

static void *fork_and_end(void *unused)
{
	(void)unused;
	while (!ended) {
		pid_t child = fork();

		if (child == 0)
			_exit(0);
		if (child < 0)
			die("fork");
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
		forks++;
		usleep(1000);
	}
	return NULL;
}

static void on_alarm(int number)
{
	(void)number;
	alarms++;
}

int main(int argc, char **argv)
{
	void *(*const workers[])(void *) = { whole, whole, torn };
	void *(*const others[])(void *) = { unmap_and_map, fork_and_end };
	const struct itimerval each_ms = { { 0, 1000 }, { 0, 1000 } };
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	pthread_t threads[3], disturbing[2];

	if (argc != 2 || (copies = atol(argv[1])) < 1) {
		fprintf(stderr, "usage: cftu-disturbed COPIES\n");
		return 2;
	}
	going = new_area();
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &each_ms, NULL);
	for (int i = 0; i < 2; i++)
		if (pthread_create(&disturbing[i], NULL, others[i], NULL))
			die("pthread_create");
	for (int i = 0; i < 3; i++)
		if (pthread_create(&threads[i], NULL, workers[i], NULL))
			die("pthread_create");
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	ended = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(disturbing[i], NULL);
	printf("%ld copies by each of 3 threads, all as they must be; %ld stopped, %ld signals, %ld forks\n",
	       copies, (long)stopped, (long)alarms, (long)forks);
	return 0;
}
