// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The streams of against_cachegrind.rs and of the example speed.rs, for valgrind to watch.
 *
 * walk PATTERN LINES STEPS LOCALITY: prints where the buffer of LINES lines is, then makes
 * STEPS steps in it; a step of the mmap patterns walks LOCALITY times. With 0 steps it does
 * all but that.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LINE 64
#define SPAN 512

static inline uint64_t next(uint64_t state)
{
	return state * 6364136223846793005u + 1442695040888963407u;
}

static inline void walk(volatile char *base, uint64_t locality)
{
	for (uint64_t round = 0; round < locality; round++)
		for (int line = 0; line < SPAN; line++)
			if (line % 8 == 7)
				base[line * LINE] = 1;
			else
				(void)base[line * LINE];
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	const char *pattern = argv[1];
	uint64_t lines = strtoull(argv[2], NULL, 10);
	uint64_t steps = strtoull(argv[3], NULL, 10);
	uint64_t locality = strtoull(argv[4], NULL, 10);
	volatile char *buffer = mmap(NULL, lines * LINE, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (buffer == MAP_FAILED)
		return 1;
	printf("%" PRIuPTR "\n", (uintptr_t)buffer);
	fflush(stdout);
	if (!strcmp(pattern, "mmap-random")) {
		uint64_t state = 1;

		for (uint64_t step = 0; step < steps; step++) {
			state = next(state);
			walk(buffer + (state >> 33) % (lines - SPAN + 1) * LINE, locality);
		}
	} else if (!strcmp(pattern, "mmap-sequential")) {
		uint64_t base = 0;

		for (uint64_t step = 0; step < steps; step++) {
			walk(buffer + base * LINE, locality);
			base += SPAN;
			if (base + SPAN > lines)
				base = 0;
		}
	} else if (!strcmp(pattern, "random")) {
		uint64_t state = 1;

		for (uint64_t step = 0; step < steps; step++) {
			state = next(state);
			volatile char *line = buffer + (state >> 33) % lines * LINE;

			if (step % 4 == 3)
				*line = 1;
			else
				(void)*line;
		}
	} else if (!strcmp(pattern, "cyclic")) {
		uint64_t at = 0;

		for (uint64_t step = 0; step < steps; step++) {
			(void)buffer[at * LINE];
			if (++at == lines)
				at = 0;
		}
	} else {
		return 2;
	}
	return 0;
}
