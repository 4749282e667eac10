// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * libFuzzer target: any text, to both parsers of memguard's files. `make fuzz`
 * builds it with address and undefined-behaviour checks.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"

#define CORES 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct mg_reservation values[CORES];
	struct mg_command command;
	struct mg_limits limits;
	char *text = malloc(size + 1);
	const char *why;
	unsigned int i;

	memcpy(text, data, size);
	text[size] = '\0';
	if (!mg_parse_limits(text, MG_EVENTS, &limits, values, CORES, &why)) {
		if (!limits.count || limits.count > CORES)
			abort();
		for (i = 0; i < limits.count; i++)
			if ((values[i].unit == MG_MAX) != (values[i].value == 0))
				abort();
	}
	mg_parse_control(text, &command, &why);
	free(text);
	return 0;
}
