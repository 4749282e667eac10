// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Compares the cores' budgets: periods <TRACE
 *
 * TRACE has memguard's period events. Periods with the same number are compared, whichever cores
 * they are of, and the result is a line "N compared, N unequal". Periods that one event counts
 * together are left out. A shell's sed, sort and awk take seconds of a CPU for as many events.
 */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct period {
	unsigned long long number, budget;
};

static int by_number(const void *left, const void *right)
{
	const struct period *a = left, *b = right;

	if (a->number != b->number)
		return a->number < b->number ? -1 : 1;
	return (a->budget > b->budget) - (a->budget < b->budget);
}

int main(void)
{
	struct period *all = NULL;
	size_t count = 0, room = 0, compared = 0, unequal = 0;
	char line[512];

	while (fgets(line, sizeof(line), stdin)) {
		char *event = strstr(line, " period: ");
		struct period period;

		if (!event)
			continue;
		if (sscanf(event, " period: epoch=%llu periods=1 late_ns=%*u used_read=%*u assigned_read=%llu ",
			   &period.number, &period.budget) != 2)
			continue;
		if (count == room) {
			room = room ? 2 * room : 1024;
			all = realloc(all, room * sizeof(*all));
			if (!all)
				err(1, "%zu periods", room);
		}
		all[count++] = period;
	}
	if (ferror(stdin))
		err(1, "read");
	qsort(all, count, sizeof(*all), by_number);
	for (size_t i = 1; i < count; i++) {
		if (all[i].number != all[i - 1].number)
			continue;
		compared++;
		unequal += all[i].budget != all[i - 1].budget;
	}
	printf("%zu compared, %zu unequal\n", compared, unequal);
	return 0;
}
