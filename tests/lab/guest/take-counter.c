// SPDX-License-Identifier: MIT OR Apache-2.0
/* take-counter CONFIG: another user of a raw event on CPU 0, pinned, for a moment. */
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	struct perf_event_attr attributes = {
		.type = PERF_TYPE_RAW,
		.size = sizeof(attributes),
		.config = count > 1 ? strtoull(arguments[1], NULL, 0) : 0,
		.pinned = 1,
	};
	long event = syscall(SYS_perf_event_open, &attributes, -1, 0, -1, 0);

	if (event < 0) {
		perror("perf_event_open");
		return 1;
	}
	return 0;
}
