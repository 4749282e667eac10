// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * mymem-model DEVICE OPERATIONS SEED: random operations on a memory device,
 * each compared with the result of a model: the first half by one thread on
 * all of the device, the second by four at once, each in its own quarter. The
 * device was just loaded without parameters. The first difference ends it with
 * exit code 1 and a line that describes the difference.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../kernel/include/uapi/memwarden/mymem.h"

#define SIZE 524288
#define THREADS 4

static const char *path;
static char *map;
/* The expected content of the device. Each thread checks its own part. */
static unsigned char model[SIZE];

struct walk {
	int fd;
	uint64_t random;
	long operations;
	/* Its range of the device; only the thread with all of it goes out of range. */
	int64_t begin, end;
	int64_t position;
	unsigned char given[SIZE], taken[SIZE];
};

/* xorshift64 */
static uint64_t draw(struct walk *walk)
{
	walk->random ^= walk->random << 13;
	walk->random ^= walk->random >> 7;
	walk->random ^= walk->random << 17;
	return walk->random;
}

/* Mostly small, at times as large as the device. */
static int64_t draw_count(struct walk *walk)
{
	uint64_t kind = draw(walk) % 1000;

	if (kind == 0)
		return SIZE;
	if (kind < 10)
		return draw(walk) % SIZE;
	return draw(walk) % ((uint64_t)1 << (draw(walk) % 16));
}

/* Anywhere, also a little outside, and often near the end. */
static int64_t draw_place(struct walk *walk)
{
	switch (draw(walk) % 16) {
	case 0:
		return SIZE - 64 + (int64_t)(draw(walk) % 128);
	case 1:
		return (int64_t)(draw(walk) % 64) - 32;
	default:
		return draw(walk) % SIZE;
	}
}

static void differs(const char *what, int64_t at, int64_t count, long got, long expected)
{
	printf("%s of %lld bytes at %lld: got %ld, the model says %ld\n", what, (long long)count,
	       (long long)at, got, expected);
	exit(1);
}

/* The strict device's result of a read or write: bytes, or a negative error. */
static long expected(int64_t at, int64_t count, long at_end)
{
	if (at < 0 || at > SIZE)
		return -EINVAL;
	if (!count)
		return 0;
	if (at == SIZE)
		return at_end;
	return count > SIZE - at ? -EINVAL : count;
}

static long answer(long result)
{
	return result < 0 ? -errno : result;
}

static void move(struct walk *walk, bool writing, bool positioned, int64_t at, int64_t count)
{
	const char *what = writing ? "write" : "read";
	long want, got;

	if (count > SIZE)
		count = SIZE;
	want = expected(at, count, writing ? -ENOSPC : 0);
	if (writing) {
		for (int64_t i = 0; i < count && i < SIZE; i += 8) {
			uint64_t word = draw(walk);

			memcpy(walk->given + i, &word, SIZE - i < 8 ? SIZE - i : 8);
		}
		got = positioned ? answer(write(walk->fd, walk->given, count)) :
				   answer(pwrite(walk->fd, walk->given, count, at));
	} else {
		got = positioned ? answer(read(walk->fd, walk->taken, count)) :
				   answer(pread(walk->fd, walk->taken, count, at));
	}
	if (got != want)
		differs(what, at, count, got, want);
	if (want <= 0)
		return;
	if (writing)
		memcpy(model + at, walk->given, want);
	else if (memcmp(model + at, walk->taken, want))
		differs("content of a read", at, count, 0, 0);
	if (positioned)
		walk->position += want;
}

static void seek(struct walk *walk)
{
	int whence = draw(walk) % 3;
	int64_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? walk->position : SIZE;
	int64_t offset = draw_place(walk) - from + (draw(walk) % 2 ? 0 : (int64_t)(draw(walk) % 9) - 4);
	long want = from + offset < 0 || from + offset > SIZE ? -EINVAL : from + offset;
	long got = answer(lseek(walk->fd, offset, whence));

	if (got != want)
		differs("seek", from, offset, got, want);
	if (want >= 0)
		walk->position = want;
}

static void request(struct walk *walk, int64_t at)
{
	bool inside = at >= 0 && at <= SIZE - 8 && at % 8 == 0;
	long want = inside ? 0 : -EINVAL, got;
	uint64_t word = 0;

	if (inside)
		memcpy(&word, model + at, 8);
	if (draw(walk) % 2) {
		struct mymem_fetch_add add = { .offset = at, .operand = draw(walk) };
		uint64_t operand = add.operand;

		got = answer(ioctl(walk->fd, MYMEM_FETCH_ADD, &add));
		if (got != want || (inside && add.operand != word))
			differs("fetch-add", at, 8, got, want);
		word += operand;
	} else {
		struct mymem_compare_exchange exchange = {
			.offset = at,
			.expected = draw(walk) % 2 ? word : word + 1,
			.desired = draw(walk),
		};
		bool replaces = exchange.expected == word;
		uint64_t desired = exchange.desired;

		got = answer(ioctl(walk->fd, MYMEM_COMPARE_EXCHANGE, &exchange));
		if (got != want || (inside && exchange.expected != word))
			differs("compare-exchange", at, 8, got, want);
		if (replaces)
			word = desired;
	}
	if (inside)
		memcpy(model + at, &word, 8);
}

static void touch(struct walk *walk, int64_t at, int64_t count)
{
	if (draw(walk) % 2) {
		memset(map + at, draw(walk), count);
		memcpy(model + at, map + at, count);
	} else if (memcmp(map + at, model + at, count)) {
		differs("content of the mapping", at, count, 0, 0);
	}
}

static void *walk(void *argument)
{
	struct walk *walk = argument;
	bool all = walk->end - walk->begin == SIZE;

	for (long i = 0; i < walk->operations; i++) {
		uint64_t kind = draw(walk) % 16;
		int64_t at = draw_place(walk), count = draw_count(walk);

		if (!all) {
			/* Into its own part: accesses of other threads must not show. */
			at = walk->begin + (at & 0x7fffffff) % (walk->end - walk->begin);
			count %= walk->end - at;
		}
		if (kind < 4) {
			move(walk, kind % 2, false, at, count);
		} else if (kind < 8 && all) {
			move(walk, kind % 2, true, walk->position, count);
		} else if (kind < 11 && all) {
			seek(walk);
		} else if (kind < 14) {
			at &= draw(walk) % 4 || !all ? ~7LL : -1;
			if (all || at + 8 <= walk->end)
				request(walk, at);
		} else if (at >= 0 && at < SIZE) {
			count %= 256;
			touch(walk, at, count < walk->end - at ? count : walk->end - at);
		}
	}
	return NULL;
}

static struct walk *begin_walk(uint64_t seed, long operations, int64_t begin, int64_t end)
{
	struct walk *walk = calloc(1, sizeof(*walk));

	walk->fd = open(path, O_RDWR);
	if (walk->fd < 0) {
		fprintf(stderr, "open %s: %s\n", path, strerror(errno));
		exit(2);
	}
	walk->random = seed * 0x9e3779b97f4a7c15ULL | 1;
	walk->operations = operations;
	walk->begin = begin;
	walk->end = end;
	return walk;
}

int main(int argc, char **argv)
{
	long operations = argc == 4 ? atol(argv[2]) : 0;
	uint64_t seed = argc == 4 ? strtoull(argv[3], NULL, 0) : 0;
	pthread_t threads[THREADS];
	static unsigned char end[SIZE];
	struct walk *first;

	if (operations <= 0) {
		fprintf(stderr, "mymem-model DEVICE OPERATIONS SEED\n");
		return 2;
	}
	path = argv[1];
	first = begin_walk(seed, operations / 2, 0, SIZE);
	map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, first->fd, 0);
	if (map == MAP_FAILED) {
		perror("mmap");
		return 2;
	}
	walk(first);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, walk,
			       begin_walk(seed + i + 1, operations / 2 / THREADS,
					  (int64_t)SIZE / THREADS * i,
					  (int64_t)SIZE / THREADS * (i + 1)));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	if (pread(first->fd, end, SIZE, 0) != SIZE || memcmp(end, model, SIZE))
		differs("content at the end", 0, SIZE, 0, 0);
	printf("%ld operations, no difference\n",
	       operations / 2 + operations / 2 / THREADS * THREADS);
	return 0;
}
