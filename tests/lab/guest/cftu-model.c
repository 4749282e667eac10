// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cftu-model OPERATIONS SEED: random copies through /dev/cftu, each done twice, by
 * the engine and by the CPU, to targets with equal content: the results and the targets
 * must be equal afterwards. One thread makes the first half, four threads the second;
 * policies change all the time. The first difference ends it with exit code 1 and a line
 * that describes the difference.
 *
 * User memory is an arena, twice: most of it ordinary, then pages that can't be
 * written, pages that can't be touched, a hole, and a shared file. The region has
 * two halves.
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

#include "../../../kernel/include/uapi/memwarden/cftu.h"

#define THREADS 4
/* With fewer operations than this, the memory for the longest copies is not needed. */
#define FEW 1000
#define KIB 1024L
#define LONGEST (4096 * KIB)
/* Checked on both sides of each copy: these bytes must not change. */
#define MARGIN 64L
#define HALF (LONGEST + 2 * MARGIN + 4096)

/* The arena's parts, in this order; an eighth of these sizes for four threads or a short run. */
static const struct part {
	long bytes;
	int protection;
	bool there, file;
} parts[] = {
	{ 4608 * KIB, PROT_READ | PROT_WRITE, true, false },
	{ 64 * KIB, PROT_READ, true, false },
	{ 512 * KIB, PROT_READ | PROT_WRITE, true, false },
	{ 64 * KIB, PROT_NONE, true, false },
	{ 512 * KIB, PROT_READ | PROT_WRITE, true, false },
	{ 64 * KIB, PROT_NONE, false, false },
	{ 512 * KIB, PROT_READ | PROT_WRITE, true, true },
};
#define PARTS (sizeof(parts) / sizeof(parts[0]))

struct walk {
	int fd;
	/* The factor by which its arena's parts are smaller. */
	long scale;
	long arena_bytes, pinned_bytes, longest;
	uint64_t random, seed;
	long operations, done;
	uint64_t engine_bytes;
	unsigned char *arena[2];
	uint32_t pin[2];
	unsigned char *seen[2];
};

/* xorshift64 */
static uint64_t draw(struct walk *walk)
{
	walk->random ^= walk->random << 13;
	walk->random ^= walk->random >> 7;
	walk->random ^= walk->random << 17;
	return walk->random;
}

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static unsigned char *new_arena(const struct walk *walk)
{
	unsigned char *arena = mmap(NULL, walk->arena_bytes, PROT_NONE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *at = arena;
	long bytes;

	if (arena == MAP_FAILED)
		die("mmap");
	for (const struct part *part = parts; part < parts + PARTS; at += bytes, part++) {
		int flags = MAP_FIXED | (part->file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
		int file = -1;

		bytes = part->bytes / walk->scale;
		if (!part->there) {
			munmap(at, bytes);
			continue;
		}
		if (part->file) {
			file = memfd_create("arena", 0);
			if (file < 0 || ftruncate(file, bytes))
				die("memfd_create");
		}
		if (mmap(at, bytes, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED)
			die("mmap of a part");
		for (long i = 0; i < bytes; i += 8)
			*(uint64_t *)(at + i) = (i + 1) * 0x9e3779b97f4a7c15;
		mprotect(at, bytes, part->protection);
		if (file >= 0)
			close(file);
	}
	return arena;
}

/*
 * Mostly small, at times long: an engine needs a transfer for each page, which takes a debug
 * kernel milliseconds. A run begins with some long ones, so that a short run has them, too.
 */
static long draw_bytes(struct walk *walk)
{
	uint64_t kind = draw(walk) % 4096;

	if (kind == 0 || walk->done == 0)
		return 1 + draw(walk) % walk->longest;
	if (kind < 16 || walk->done < 4)
		return 1 + draw(walk) % (128 * KIB);
	return 1 + draw(walk) % ((uint64_t)1 << (draw(walk) % 15));
}

static void differs(const struct walk *walk, const struct cftu_copy *copy, const char *what,
		    long got, long expected)
{
	printf("operation %ld of seed %llu: %s user memory, %lld bytes at %lld of the arena and %lld of the region, flags %x, pin %u: %s %ld by the engine, %ld by CPU\n",
	       walk->done, (unsigned long long)walk->seed,
	       copy->direction == CFTU_FROM_USER ? "from" : "to", (long long)copy->bytes,
	       (long long)(copy->address - (uintptr_t)walk->arena[copy->direction == CFTU_TO_USER]),
	       (long long)copy->offset % HALF, copy->flags, copy->pin, what, got, expected);
	exit(1);
}

/* Compares both regions around the copy. */
static void look(struct walk *walk, const struct cftu_copy *copy, int half)
{
	struct cftu_copy back = {
		.address = (uintptr_t)walk->seen[half],
		.offset = copy->offset % HALF + half * HALF - MARGIN,
		.bytes = copy->bytes + 2 * MARGIN,
		.direction = CFTU_TO_USER,
		.engine = CFTU_CPU,
	};

	if (ioctl(walk->fd, CFTU_COPY, &back) || back.not_copied)
		die("looking at the region");
}

static void compare(struct walk *walk, const struct cftu_copy *copy, const unsigned char *a,
		    const unsigned char *b, long bytes, const char *what)
{
	if (!memcmp(a, b, bytes))
		return;
	for (long i = 0; i < bytes; i++)
		if (a[i] != b[i]) {
			printf("byte %ld of %ld: ", i, bytes);
			differs(walk, copy, what, a[i], b[i]);
		}
}

/* Compares the readable parts of both arenas around the copy. */
static void compare_arenas(struct walk *walk, const struct cftu_copy *copy, long at)
{
	long begin = at - MARGIN, end = at + copy->bytes + MARGIN, from = 0, bytes;

	for (const struct part *part = parts; part < parts + PARTS; from += bytes, part++) {
		long first = begin > from ? begin : from, last;

		bytes = part->bytes / walk->scale;
		last = end < from + bytes ? end : from + bytes;

		if (first < last && part->there && (part->protection & PROT_READ))
			compare(walk, copy, walk->arena[0] + first, walk->arena[1] + first,
				last - first, "the arenas hold");
	}
}

static void set_policy(struct walk *walk, uint32_t which)
{
	struct cftu_policy policy = { .policy = which, .flags = CFTU_FOLD };

	if (policy.policy == CFTU_POLICY_PRIORITY) {
		policy.quantum_high_ns = 20000 + draw(walk) % 400000;
		policy.quantum_low_ns = 20000 + draw(walk) % 400000;
	}
	if (ioctl(walk->fd, CFTU_POLICY, &policy))
		die("CFTU_POLICY");
}

/* One copy by both engine and CPU; their results must agree. */
static void operate(struct walk *walk)
{
	bool to = draw(walk) % 2;
	long bytes = draw_bytes(walk), at = draw(walk) % (walk->arena_bytes - bytes + 1), seen;
	struct cftu_copy copies[2];

	memset(copies, 0, sizeof(copies));
	copies[0].offset = MARGIN + draw(walk) % (HALF - 2 * MARGIN - bytes + 1);
	/* Often aligned for an engine that needs whole cache lines. */
	if (draw(walk) % 4 == 0) {
		at &= ~63L;
		copies[0].offset &= ~63L;
	}
	copies[0].bytes = bytes;
	copies[0].direction = to ? CFTU_TO_USER : CFTU_FROM_USER;
	copies[0].flags = bytes < 64 * KIB && draw(walk) % 16 == 0 ? CFTU_UNCACHED : 0;
	copies[0].engine = CFTU_DMA;
	copies[0].address = (uintptr_t)walk->arena[0] + at;
	if (at + bytes <= walk->pinned_bytes && draw(walk) % 4 == 0)
		copies[0].pin = walk->pin[0];
	copies[1] = copies[0];
	copies[1].offset += HALF;
	copies[1].engine = CFTU_CPU;
	if (to) {
		copies[1].address = (uintptr_t)walk->arena[1] + at;
		copies[1].pin = copies[0].pin ? walk->pin[1] : 0;
	}
	int answers[2], codes[2];

	for (int i = 0; i < 2; i++) {
		answers[i] = ioctl(walk->fd, CFTU_COPY, &copies[i]);
		codes[i] = answers[i] ? errno : 0;
	}
	if (codes[0] != codes[1])
		differs(walk, &copies[0], "errno", codes[0], codes[1]);
	/* Only the lines of present memory can be invalidated: otherwise no copy was begun. */
	if (codes[0] == EFAULT && copies[0].flags)
		return;
	if (codes[0])
		differs(walk, &copies[0], "an error", codes[0], codes[1]);
	if (copies[0].not_copied != copies[1].not_copied)
		differs(walk, &copies[0], "not copied", copies[0].not_copied, copies[1].not_copied);
	walk->engine_bytes += copies[0].engine_bytes;
	look(walk, &copies[0], 0);
	look(walk, &copies[0], 1);
	compare(walk, &copies[0], walk->seen[0], walk->seen[1], bytes + 2 * MARGIN,
		"the region holds");
	seen = bytes - copies[0].not_copied;
	compare(walk, &copies[0], walk->seen[0] + MARGIN, walk->arena[0] + at, seen,
		"what was copied is");
	if (to)
		compare_arenas(walk, &copies[0], at);
}

static void *go(void *walk_)
{
	struct walk *walk = walk_;

	for (walk->done = 0; walk->done < walk->operations; walk->done++) {
		/* So that the same bytes are not copied back and forth. */
		long fresh = draw(walk) % (walk->pinned_bytes - 8);
		uint64_t value = draw(walk);

		memcpy(walk->arena[0] + fresh, &value, 8);
		memcpy(walk->arena[1] + fresh, &value, 8);
		if (draw(walk) % 256 == 0)
			set_policy(walk, draw(walk) % 4);
		operate(walk);
	}
	return NULL;
}

static void begin(struct walk *walk, long operations, uint64_t seed, long scale)
{
	struct cftu_region region = { .bytes = 2 * HALF };

	walk->fd = open("/dev/cftu", O_RDWR);
	if (walk->fd < 0 || ioctl(walk->fd, CFTU_REGION, &region))
		die("/dev/cftu");
	walk->seed = seed;
	walk->random = 0x9e3779b97f4a7c15 * (seed + 1);
	walk->operations = operations;
	walk->scale = scale;
	walk->longest = LONGEST / scale;
	walk->pinned_bytes = parts[0].bytes / scale;
	for (size_t i = 0; i < PARTS; i++)
		walk->arena_bytes += parts[i].bytes / scale;
	for (int i = 0; i < 2; i++) {
		struct cftu_pin pin = { .bytes = walk->pinned_bytes, .flags = CFTU_WRITABLE };

		walk->arena[i] = new_arena(walk);
		walk->seen[i] = malloc(LONGEST + 2 * MARGIN);
		pin.address = (uintptr_t)walk->arena[i];
		if (!walk->seen[i] || ioctl(walk->fd, CFTU_PIN, &pin))
			die("CFTU_PIN");
		walk->pin[i] = pin.id;
	}
}

int main(int argc, char **argv)
{
	static struct walk walks[1 + THREADS];
	uint64_t engine_bytes;
	pthread_t threads[THREADS];
	long operations;

	if (argc != 3 || (operations = atol(argv[1])) < 1) {
		fprintf(stderr, "usage: cftu-model OPERATIONS SEED\n");
		return 2;
	}
	for (int i = 0; i < 1 + THREADS; i++)
		begin(&walks[i], i ? operations / 2 / THREADS : operations / 2,
		      strtoull(argv[2], NULL, 0) * 16 + i, i || operations < FEW ? 8 : 1);
	/* Set a policy, whatever the previous one was: with none, the engine might copy nothing. */
	set_policy(&walks[0], CFTU_POLICY_SHARED);
	go(&walks[0]);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, go, &walks[1 + i]))
			die("pthread_create");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	engine_bytes = 0;
	for (int i = 0; i < 1 + THREADS; i++)
		engine_bytes += walks[i].engine_bytes;
	if (!engine_bytes) {
		printf("the engine copied nothing\n");
		return 1;
	}
	printf("%ld operations, no difference; %llu bytes by the engine\n", operations,
	       (unsigned long long)engine_bytes);
	return 0;
}
