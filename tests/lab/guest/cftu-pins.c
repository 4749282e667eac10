// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-pins FOLDER: pins memory to be read, then changes what the process sees there, and
 * copies it. Prints a line for each kind of memory:
 *
 *   right    the copies by engine and by CPU have what the process sees
 *   stale    one of them has something else: the pin has kept another page
 *   refused  the memory can't be pinned, or not copied
 *
 * The files are made in FOLDER.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/cftu.h"

#define BYTES 16384
#define OLD 0x11
#define NEW 0x5a

static unsigned char pattern[BYTES];
static int device;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void *map(int protection, int flags, int fd)
{
	void *memory = mmap(NULL, BYTES, protection, flags, fd, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

static void fill(int fd, int byte)
{
	memset(pattern, byte, BYTES);
	if (pwrite(fd, pattern, BYTES, 0) != BYTES)
		die("pwrite");
}

/* A file of OLD bytes, open to be read and written, or only to be read. */
static int new_file(const char *folder, int flags)
{
	char path[256];
	int fd, given;

	snprintf(path, sizeof(path), "%s/pins-XXXXXX", folder);
	fd = mkstemp(path);
	if (fd < 0)
		die(path);
	fill(fd, OLD);
	given = open(path, flags);
	if (given < 0)
		die(path);
	unlink(path);
	close(fd);
	return given;
}

/* Pins the memory; 0 if that is refused. */
static unsigned int pin(const void *memory, unsigned int flags)
{
	struct cftu_pin request = {
		.address = (uintptr_t)memory,
		.bytes = BYTES,
		.flags = flags,
	};

	return ioctl(device, CFTU_PIN, &request) ? 0 : request.id;
}

/* Copies the pinned memory into the kernel and out again; NULL if one of it fails. */
static unsigned char *copied(const void *memory, unsigned int id, int engine)
{
	static unsigned char back[BYTES];
	struct cftu_copy in = {
		.address = (uintptr_t)memory,
		.bytes = BYTES,
		.direction = CFTU_FROM_USER,
		.engine = engine,
		.pin = id,
	};
	struct cftu_copy out = {
		.address = (uintptr_t)back,
		.bytes = BYTES,
		.direction = CFTU_TO_USER,
		.engine = CFTU_CPU,
	};

	memset(back, 0xee, BYTES);
	if (ioctl(device, CFTU_COPY, &in) || ioctl(device, CFTU_COPY, &out) || in.not_copied ||
	    out.not_copied || (engine == CFTU_DMA && !in.engine_bytes))
		return NULL;
	return back;
}

static void show(const char *what, const void *memory, unsigned int id)
{
	const char *result = "right";

	for (int engine = CFTU_CPU; id && engine <= CFTU_DMA; engine++) {
		unsigned char *back = copied(memory, id, engine);

		if (!back)
			id = 0;
		else if (memcmp(back, memory, BYTES))
			result = "stale";
	}
	printf("%s: %s\n", what, id ? result : "refused");
	if (id && ioctl(device, CFTU_UNPIN, &id))
		die("CFTU_UNPIN");
	munmap((void *)memory, BYTES);
}

/* Private memory that is written after it is pinned. */
static void written(const char *what, unsigned char *memory, unsigned int flags)
{
	unsigned int id = pin(memory, flags);

	if (mprotect(memory, BYTES, PROT_READ | PROT_WRITE))
		die("mprotect");
	memset(memory, NEW, BYTES);
	show(what, memory, id);
}

/* Memory of a shared mapping, whose file is written after it is pinned. */
static void file_written(const char *what, void *memory, int fd)
{
	unsigned int id = pin(memory, 0);

	fill(fd, NEW);
	show(what, memory, id);
	close(fd);
}

/* A process that has forked writes what its child still shares. */
static void forked(const char *what, int first)
{
	unsigned char *memory = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	unsigned int id = 0;
	int wait[2];
	pid_t child;

	memset(memory, OLD, BYTES);
	if (pipe(wait))
		die("pipe");
	if (first)
		id = pin(memory, 0);
	child = fork();
	if (!child) {
		char byte;

		close(wait[1]);
		_exit(read(wait[0], &byte, 1) != 0);
	}
	if (!first)
		id = pin(memory, 0);
	memset(memory, NEW, BYTES);
	close(wait[1]);
	close(wait[0]);
	waitpid(child, NULL, 0);
	show(what, memory, id);
}

int main(int argc, char **argv)
{
	const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS, both = PROT_READ | PROT_WRITE;
	struct cftu_region region = { .bytes = BYTES };
	const char *folder = argv[1];
	unsigned char *memory;
	int fd;

	device = open("/dev/cftu", O_RDWR);
	if (argc != 2 || device < 0 || ioctl(device, CFTU_REGION, &region)) {
		perror("cftu-pins");
		return 2;
	}
	written("untouched", map(both, anonymous, -1), 0);
	written("untouched, to be written", map(both, anonymous, -1), CFTU_WRITABLE);
	written("read-only, untouched", map(PROT_READ, anonymous, -1), 0);
	memory = map(both, anonymous, -1);
	/* The page of zeros. */
	if (*(volatile unsigned char *)memory)
		return 2;
	written("only read", memory, 0);
	memory = map(both, anonymous, -1);
	memset(memory, OLD, BYTES);
	written("touched", memory, 0);
	forked("pinned, then forked", 1);
	forked("forked, then pinned", 0);

	fd = new_file(folder, O_RDONLY);
	written("a private file", map(both, MAP_PRIVATE, fd), 0);
	written("a private file, read-only", map(PROT_READ, MAP_PRIVATE, fd), 0);
	/* Half of the range is one mapping, half another. */
	memory = map(both, MAP_PRIVATE, fd);
	if (mmap(memory + BYTES / 2, BYTES / 2, PROT_READ, anonymous | MAP_FIXED, -1, 0) ==
	    MAP_FAILED)
		die("mmap");
	written("two mappings", memory, 0);
	close(fd);

	fd = new_file(folder, O_RDWR);
	file_written("a shared file", map(both, MAP_SHARED, fd), fd);
	fd = new_file(folder, O_RDWR);
	file_written("a shared file, read-only", map(PROT_READ, MAP_SHARED, fd), fd);
	fd = memfd_create("pins", 0);
	if (fd < 0)
		die("memfd_create");
	fill(fd, OLD);
	file_written("a shared memory file, read-only", map(PROT_READ, MAP_SHARED, fd), fd);

	memory = map(both, anonymous, -1);
	if (munmap(memory + BYTES / 2, BYTES / 2))
		die("munmap");
	printf("a hole: %s\n", pin(memory, 0) ? "pinned" : strerror(errno));
	memory = map(PROT_NONE, anonymous, -1);
	printf("not to be read: %s\n", pin(memory, 0) ? "pinned" : strerror(errno));
	return 0;
}
