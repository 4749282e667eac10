// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-stall from | to | device [COMMAND]: a copy whose last page is one of
 * /dev/memwarden_stall, where a fault waits, as with FUSE. While it waits, the program prints
 * how many pages the kernel has pinned for engines, and whether COMMAND ends. Then the page
 * arrives, and the copy is checked.
 *
 *   from    write() to a pipe, a copy of the kernel's
 *   to      read() of a file in memory
 *   device  a request to /dev/cftu, 4 MiB into user memory
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/cftu.h"

#define PAGE 4096L
/* A command that has not ended by then waits for the page. */
#define PATIENCE_S 10

static const char *what;
static unsigned char *memory;
static long bytes;
static int fds[2], device;
static long copied;

static void die(const char *why)
{
	fprintf(stderr, "%s: %s\n", why, strerror(errno));
	_exit(2);
}

static unsigned char byte_at(long at)
{
	return 1 + at % 251;
}

static void *copy(void *unused)
{
	struct cftu_copy request = {
		.address = (uintptr_t)memory,
		.bytes = bytes,
		.direction = CFTU_TO_USER,
		.engine = CFTU_DMA,
	};

	(void)unused;
	if (!strcmp(what, "from"))
		copied = write(fds[1], memory, bytes);
	else if (!strcmp(what, "to"))
		copied = pread(fds[0], memory, bytes, 0);
	else if (!ioctl(fds[0], CFTU_COPY, &request))
		copied = bytes - request.not_copied;
	return NULL;
}

static long value(const char *name)
{
	FILE *file = fopen("/proc/vmstat", "r");
	char key[64];
	long found = -1, one;

	while (file && fscanf(file, "%63s %ld", key, &one) == 2)
		if (!strcmp(key, name))
			found = one;
	if (file)
		fclose(file);
	if (found < 0)
		die(name);
	return found;
}

/* The kernel first sums up the counts of all CPUs. */
static long pinned(void)
{
	int fd = open("/proc/sys/vm/stat_refresh", O_WRONLY);

	if (fd < 0 || write(fd, "1", 1) != 1)
		die("/proc/sys/vm/stat_refresh");
	close(fd);
	return value("nr_foll_pin_acquired") - value("nr_foll_pin_released");
}

static long waiting(void)
{
	char text[16] = "";

	if (pread(device, text, sizeof(text) - 1, 0) < 0)
		die("/dev/memwarden_stall");
	return atol(text);
}

/* Whether the command ends. A fork would wait for the fault, as it copies the memory. */
static int ends(const char *command)
{
	char *arguments[] = { "sh", "-c", (char *)command, NULL };
	int status;
	pid_t pid;

	if (posix_spawn(&pid, "/bin/sh", NULL, NULL, arguments, environ))
		die("/bin/sh");
	for (int tenths = 0; tenths < 10 * PATIENCE_S; tenths++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return status == 0;
		usleep(100000);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct cftu_region region = { .bytes = 4 << 20 };
	unsigned char *expected;
	pthread_t thread;
	long at, before;

	what = argc > 1 ? argv[1] : "";
	device = open("/dev/memwarden_stall", O_RDWR);
	if (device < 0)
		die("/dev/memwarden_stall");
	bytes = !strcmp(what, "device") ? 4 << 20 : PAGE;
	/* The copy ends in the page that is not present; a short one begins half a page before. */
	memory = mmap(NULL, bytes + 2 * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (memory == MAP_FAILED ||
	    mmap(memory + bytes, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, device,
		 0) == MAP_FAILED)
		die("mmap");
	memory += PAGE / 2;
	expected = calloc(1, bytes);
	for (at = 0; at < bytes; at++)
		expected[at] = byte_at(at);
	if (!strcmp(what, "from")) {
		if (pipe(fds))
			die("pipe");
		memcpy(memory, expected, PAGE / 2);
		memset(expected + PAGE / 2, 0, PAGE / 2);
	} else if (!strcmp(what, "to")) {
		fds[0] = memfd_create("stall", 0);
		if (fds[0] < 0 || write(fds[0], expected, bytes) != bytes)
			die("memfd_create");
	} else {
		struct cftu_copy there = {
			.address = (uintptr_t)expected,
			.bytes = bytes,
			.engine = CFTU_CPU,
		};

		fds[0] = open("/dev/cftu", O_RDWR);
		if (fds[0] < 0 || ioctl(fds[0], CFTU_REGION, &region) ||
		    ioctl(fds[0], CFTU_COPY, &there))
			die("/dev/cftu");
	}
	before = pinned();
	if (pthread_create(&thread, NULL, copy, NULL))
		die("pthread_create");
	while (!waiting())
		usleep(1000);
	printf("waits with %ld pages pinned\n", pinned() - before);
	if (argc > 2)
		printf("%s: %s\n", argv[2], ends(argv[2]) ? "ends" : "waits, or fails");
	fflush(stdout);
	if (write(device, "", 1) != 1)
		die("/dev/memwarden_stall");
	pthread_join(thread, NULL);
	if (!strcmp(what, "from") && read(fds[0], memory, bytes) != bytes)
		die("the pipe");
	for (at = 0; at < bytes && memory[at] == expected[at]; at++)
		;
	printf("copied %ld of %ld, right %ld\n", copied, bytes, at);
	return copied != bytes || at != bytes;
}
