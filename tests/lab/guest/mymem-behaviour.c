// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * mymem-behaviour DEVICE SIZE strict|lenient: tests the behaviour of a memory
 * device, as TAP. The device was just loaded. The same for C and Rust.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/mymem.h"

static const char *path;
static off_t size;
static bool strict;
static int fd;
static unsigned int checks, failures;

static void check(bool good, const char *what)
{
	checks++;
	failures += !good;
	printf("%sok %u - %s\n", good ? "" : "not ", checks, what);
	if (!good)
		printf("# the last error number is %d (%s)\n", errno, strerror(errno));
	fflush(stdout);
}

/* True if a call failed with that error. */
static bool fails(long result, int error)
{
	return result == -1 && errno == error;
}

static int open_or_die(int flags)
{
	int opened = open(path, flags);

	if (opened < 0) {
		printf("Bail out! open %s: %s\n", path, strerror(errno));
		exit(1);
	}
	return opened;
}

static unsigned char *pattern(size_t count, unsigned int seed)
{
	unsigned char *bytes = malloc(count);

	for (size_t i = 0; i < count; i++)
		bytes[i] = (i * 31 + i / 251 + seed) & 0xff;
	return bytes;
}

static void fresh(void)
{
	unsigned char *bytes = malloc(size);
	struct stat facts;
	bool zero = true;

	check(lseek(fd, 0, SEEK_END) == size, "the end is where the size says");
	check(pread(fd, bytes, size, 0) == size, "all of it is read at once");
	for (off_t i = 0; i < size; i++)
		zero &= !bytes[i];
	check(zero, "it is zeroed at load");
	check(fstat(fd, &facts) == 0 && (facts.st_mode & 07777) == 0600, "it is for root alone");
	free(bytes);
}

static void moves(void)
{
	const size_t counts[] = { 1, 7, 8, 64, 4095, 4096, 4097, 65536, size };

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		size_t count = counts[i];
		unsigned char *in = pattern(count, i), *out = calloc(1, count);
		off_t at = (size - count) / 2;
		char what[80];

		snprintf(what, sizeof(what), "%zu bytes are read as they were written", count);
		check(lseek(fd, at, SEEK_SET) == at && write(fd, in, count) == (ssize_t)count &&
			      lseek(fd, 0, SEEK_CUR) == at + (off_t)count &&
			      lseek(fd, at, SEEK_SET) == at && read(fd, out, count) == (ssize_t)count &&
			      !memcmp(in, out, count),
		      what);
		free(in);
		free(out);
	}
	lseek(fd, 100, SEEK_SET);
	check(pwrite(fd, "x", 1, 50) == 1 && lseek(fd, 0, SEEK_CUR) == 100,
	      "pwrite leaves the position");
	check(pread(fd, (char[1]){}, 1, 50) == 1 && lseek(fd, 0, SEEK_CUR) == 100,
	      "pread leaves the position");
	struct iovec parts[3] = { { "ab", 2 }, { "", 0 }, { "cde", 3 } };
	char back[6] = {};

	check(pwritev(fd, parts, 3, 10) == 5 && pread(fd, back, 5, 10) == 5 &&
		      !strcmp(back, "abcde"),
	      "the parts of a vector go one behind the other");
}

static void seeks(void)
{
	check(lseek(fd, 7, SEEK_SET) == 7 && lseek(fd, 5, SEEK_CUR) == 12 &&
		      lseek(fd, -2, SEEK_CUR) == 10 && lseek(fd, -1, SEEK_END) == size - 1,
	      "seek goes from the start, from here and from the end");
	check(lseek(fd, size, SEEK_SET) == size, "the end can be gone to");
	lseek(fd, 3, SEEK_SET);
	check(fails(lseek(fd, -1, SEEK_SET), EINVAL), "before the start is refused");
	check(fails(lseek(fd, size + 1, SEEK_SET), EINVAL), "behind the end is refused");
	check(fails(lseek(fd, 1, SEEK_END), EINVAL), "behind the end, from there, is refused");
	check(fails(lseek(fd, -4, SEEK_CUR), EINVAL), "before the start, from here, is refused");
	check(fails(lseek(fd, INT64_MAX, SEEK_CUR), EINVAL), "beyond all numbers is refused");
	check(fails(lseek(fd, 0, 17), EINVAL), "an unknown origin is refused");
	check(fails(lseek(fd, 0, SEEK_HOLE), EINVAL), "holes are not looked for");
	check(lseek(fd, 0, SEEK_CUR) == 3, "a refused seek leaves the position");
}

static void ends(void)
{
	unsigned char *bytes = calloc(1, size + 1);

	check(pread(fd, bytes, 8, size - 8) == 8, "the last bytes are read");
	check(pwrite(fd, bytes, 8, size - 8) == 8, "the last bytes are written");
	check(pread(fd, bytes, 8, size) == 0, "at the end nothing is read");
	check(fails(pwrite(fd, bytes, 8, size), ENOSPC), "at the end nothing can be written");
	check(fails(pread(fd, bytes, 1, size + 1), EINVAL), "reading behind the end is refused");
	check(fails(pwrite(fd, bytes, 1, size + 1), EINVAL), "writing behind the end is refused");
	check(pread(fd, bytes, 0, 0) == 0 && pwrite(fd, bytes, 0, size) == 0,
	      "no bytes can be moved from anywhere inside");
	lseek(fd, size - 4, SEEK_SET);
	if (strict) {
		check(fails(read(fd, bytes, 5), EINVAL), "a read that passes the end is refused");
		check(fails(write(fd, bytes, 5), EINVAL), "a write that passes the end is refused");
		check(lseek(fd, 0, SEEK_CUR) == size - 4, "which leaves the position");
		check(fails(pread(fd, bytes, size + 1, 0), EINVAL),
		      "one byte more than there is, is refused");
	} else {
		check(read(fd, bytes, 5) == 4, "a read that passes the end is shortened");
		check(pwrite(fd, bytes, 5, size - 4) == 4, "a write that passes the end is shortened");
		check(lseek(fd, 0, SEEK_CUR) == size, "the position moves by what was read");
		check(pread(fd, bytes, size + 1, 0) == size, "more than there is gives what there is");
	}
	free(bytes);
}

static void user_memory(void)
{
	long page = sysconf(_SC_PAGESIZE);
	/* Volatile: the compiler would refuse by itself. */
	void *volatile nowhere = NULL;
	char *half = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(half + page, page);
	lseek(fd, 0, SEEK_SET);
	check(fails(read(fd, nowhere, 8), EFAULT), "reading to nowhere is refused");
	check(fails(write(fd, nowhere, 8), EFAULT), "writing from nowhere is refused");
	check(fails(read(fd, half + page - 100, 200), EFAULT), "a buffer that ends too soon is refused");
	check(fails(write(fd, half + page - 100, 200), EFAULT), "for writing too");
	check(lseek(fd, 0, SEEK_CUR) == 0, "which leaves the position");
	mprotect(half, page, PROT_READ);
	check(fails(read(fd, half, 8), EFAULT), "a buffer that can't be written to is refused");
	munmap(half, page);
}

static void mappings(void)
{
	long page = sysconf(_SC_PAGESIZE);
	size_t whole = (size + page - 1) / page * page;
	char byte = 0;
	int reader = open_or_die(O_RDONLY);
	char *map = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	check(map != MAP_FAILED, "all of it can be mapped");
	pwrite(fd, "M", 1, size - 1);
	check(map[size - 1] == 'M', "a write shows in the mapping");
	map[0] = 'W';
	check(pread(fd, &byte, 1, 0) == 1 && byte == 'W', "the mapping's change is read");
	munmap(map, whole);

	if (size > page) {
		map = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, page);
		pwrite(fd, "P", 1, page);
		check(map != MAP_FAILED && map[0] == 'P', "a mapping may begin at a page inside");
		munmap(map, page);
	}
	map = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (map != MAP_FAILED)
		map[0] = 'p';
	check(map != MAP_FAILED && pread(fd, &byte, 1, 0) == 1 && byte == 'W',
	      "a private mapping's changes stay its own");
	munmap(map, page);
	check(mmap(NULL, whole + page, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED &&
		      errno == EINVAL,
	      "more than there is can't be mapped");
	check(mmap(NULL, page, PROT_READ, MAP_SHARED, fd, whole) == MAP_FAILED && errno == EINVAL,
	      "what is behind the end can't be mapped");
	check(mmap(NULL, page, PROT_WRITE, MAP_SHARED, reader, 0) == MAP_FAILED && errno == EACCES,
	      "a reader can't map it for writing");
	map = mmap(NULL, page, PROT_READ, MAP_SHARED, reader, 0);
	close(reader);
	check(map != MAP_FAILED && map[0] == 'W', "a mapping stays when its descriptor is closed");
	munmap(map, page);
}

static void requests(void)
{
	struct mymem_fetch_add add = { .offset = 8, .operand = 5 };
	struct mymem_compare_exchange exchange = { .offset = 8, .expected = 47, .desired = 100 };
	uint64_t word = 42;
	int reader = open_or_die(O_RDONLY);

	pwrite(fd, &word, 8, 8);
	check(ioctl(fd, MYMEM_FETCH_ADD, &add) == 0 && add.operand == 42, "fetch-add says what was");
	check(pread(fd, &word, 8, 8) == 8 && word == 47, "and adds");
	check(ioctl(fd, MYMEM_COMPARE_EXCHANGE, &exchange) == 0 && exchange.expected == 47,
	      "compare-exchange says what was");
	check(pread(fd, &word, 8, 8) == 8 && word == 100, "and replaces what was expected");
	exchange.expected = 1;
	exchange.desired = 2;
	check(ioctl(fd, MYMEM_COMPARE_EXCHANGE, &exchange) == 0 && exchange.expected == 100 &&
		      pread(fd, &word, 8, 8) == 8 && word == 100,
	      "and leaves what was not");
	add = (struct mymem_fetch_add){ .offset = 8, .operand = -101 };
	check(ioctl(fd, MYMEM_FETCH_ADD, &add) == 0 && pread(fd, &word, 8, 8) == 8 &&
		      word == UINT64_MAX,
	      "it wraps around");
	const uint64_t wrong[] = { 1, 4, 12, size - 4, size, size + 8, UINT64_MAX, UINT64_MAX - 7 };
	bool refused = true;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		add.offset = wrong[i];
		exchange.offset = wrong[i];
		refused &= fails(ioctl(fd, MYMEM_FETCH_ADD, &add), EINVAL) &&
			   fails(ioctl(fd, MYMEM_COMPARE_EXCHANGE, &exchange), EINVAL);
	}
	check(refused, "a word that isn't aligned, or not inside, is refused");
	add.offset = (size - 8) & ~7ULL;
	check(ioctl(fd, MYMEM_FETCH_ADD, &add) == 0, "the last word can be added to");
	check(fails(ioctl(fd, MYMEM_FETCH_ADD, NULL), EFAULT), "a request from nowhere is refused");
	check(fails(ioctl(fd, _IO(MYMEM_IOCTL_TYPE, 99), &add), ENOTTY),
	      "an unknown request is refused");
	check(fails(ioctl(reader, MYMEM_FETCH_ADD, &add), EBADF) &&
		      fails(ioctl(reader, MYMEM_COMPARE_EXCHANGE, &exchange), EBADF),
	      "a reader may not change a word");
	check(fails(write(reader, &word, 8), EBADF), "nor write");
	close(reader);
}

/* Threads: each call is atomic, and no update is lost. */

#define THREADS 4
#define ROUNDS 2000
#define STAMP 16384

static atomic_bool torn;

static void *stamp(void *argument)
{
	int number = (intptr_t)argument;
	unsigned char *bytes = malloc(STAMP);
	int own = open_or_die(O_RDWR);

	for (int round = 0; round < ROUNDS; round++) {
		if (number % 2) {
			memset(bytes, number * 64 + round % 64, STAMP);
			if (pwrite(own, bytes, STAMP, 100) != STAMP)
				torn = true;
			continue;
		}
		if (pread(own, bytes, STAMP, 100) != STAMP)
			torn = true;
		for (int i = 1; i < STAMP; i++)
			if (bytes[i] != bytes[0])
				torn = true;
	}
	close(own);
	free(bytes);
	return NULL;
}

static void *add(void *unused)
{
	int own = open_or_die(O_RDWR);

	(void)unused;
	for (int round = 0; round < ROUNDS; round++) {
		struct mymem_fetch_add request = { .offset = 0, .operand = 1 };

		ioctl(own, MYMEM_FETCH_ADD, &request);
	}
	close(own);
	return NULL;
}

static void *exchange(void *unused)
{
	int own = open_or_die(O_RDWR);

	(void)unused;
	for (int round = 0; round < ROUNDS; round++) {
		struct mymem_compare_exchange request = { .offset = 0, .expected = 0 };
		uint64_t seen;

		do {
			seen = request.expected;
			request.desired = seen + 1;
			ioctl(own, MYMEM_COMPARE_EXCHANGE, &request);
		} while (request.expected != seen);
	}
	close(own);
	return NULL;
}

static atomic_uint reads_of[ROUNDS];

/* All threads read through one descriptor, eight bytes at a time. */
static void *take_turns(void *unused)
{
	uint64_t number;

	(void)unused;
	while (read(fd, &number, 8) == 8 && number < ROUNDS)
		reads_of[number]++;
	return NULL;
}

static void together(void *(*what)(void *))
{
	pthread_t threads[THREADS];

	for (intptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, what, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

static void threads(void)
{
	uint64_t word = 0;
	unsigned char *zero = calloc(1, STAMP);
	bool once = true;

	pwrite(fd, zero, STAMP, 100);
	together(stamp);
	check(!torn, "no read sees half of a write");
	pwrite(fd, &word, 8, 0);
	together(add);
	check(pread(fd, &word, 8, 0) == 8 && word == THREADS * ROUNDS, "fetch-add loses nothing");
	word = 0;
	pwrite(fd, &word, 8, 0);
	together(exchange);
	check(pread(fd, &word, 8, 0) == 8 && word == THREADS * ROUNDS,
	      "compare-exchange loses nothing");
	for (uint64_t number = 0; number <= ROUNDS; number++)
		pwrite(fd, &number, 8, number * 8);
	lseek(fd, 0, SEEK_SET);
	together(take_turns);
	for (int i = 0; i < ROUNDS; i++)
		once &= reads_of[i] == 1;
	check(once, "threads that share a descriptor take turns at its position");
	free(zero);
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "mymem-behaviour DEVICE SIZE strict|lenient\n");
		return 2;
	}
	path = argv[1];
	size = atoll(argv[2]);
	strict = !strcmp(argv[3], "strict");
	fd = open_or_die(O_RDWR);
	fresh();
	moves();
	seeks();
	ends();
	user_memory();
	mappings();
	requests();
	threads();
	close(fd);
	printf("1..%u\n", checks);
	return failures != 0;
}
