// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * reclaim HOT_MIB COLD_MIB ROUNDS: how often pages that are in use had to be
 * fetched back from swap while others only passed through. Touches each hot page
 * once in a while (after each 64th of the cold ones are written), and prints the
 * major faults that this took. To be run with less memory than both together.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define PAGE 4096L
#define MIB (1L << 20)

static volatile char sink;

static long major_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_majflt;
}

static char *map(long bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	memset(memory, 1, bytes);
	return memory;
}

int main(int argc, char **argv)
{
	long hot_bytes, cold_bytes, rounds, faults = 0;
	char *hot, *cold;

	if (argc != 4 || atol(argv[1]) <= 0 || atol(argv[2]) <= 0 || atol(argv[3]) <= 0) {
		fprintf(stderr, "reclaim HOT_MIB COLD_MIB ROUNDS\n");
		return 2;
	}
	hot_bytes = atol(argv[1]) * MIB;
	cold_bytes = atol(argv[2]) * MIB;
	rounds = atol(argv[3]);
	hot = map(hot_bytes);
	cold = map(cold_bytes);
	for (long round = 0; round < rounds; round++) {
		for (long part = 0; part < 64; part++) {
			long before, from = cold_bytes / 64 * part;

			for (long at = from; at < from + cold_bytes / 64; at += PAGE)
				cold[at]++;
			before = major_faults();
			for (long at = 0; at < hot_bytes; at += PAGE)
				sink += hot[at];
			/* The first round is what brings everything to its place. */
			if (round > 0)
				faults += major_faults() - before;
		}
	}
	printf("%ld major faults on hot pages\n", faults);
	return 0;
}
