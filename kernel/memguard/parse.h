/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Parses text that is written to the files into structs. It uses no kernel interfaces, so the same
 * source can be fuzzed in user space.
 */
#ifndef MEMGUARD_PARSE_H
#define MEMGUARD_PARSE_H

#include "types.h"

/* MiB/s; about 10 TiB/s leaves room to multiply by 2^20 and by a second in us. */
#define MG_MB_LIMIT 10000000ULL
#define MG_WEIGHT_LIMIT 1000000ULL
#define MG_CPU_LIMIT 65535ULL

enum mg_unit { MG_MAX, MG_EVENTS, MG_MB, MG_PCT, MG_WEIGHT };

/* struct mg_reservation - a budget as written; @value is unused for MG_MAX */
struct mg_reservation {
	enum mg_unit unit;
	u64 value;
};

/* struct mg_limits - `[cpuN] [mb|pct|weight|events] VALUE|max ...` */
struct mg_limits {
	bool one_cpu; /* @count is 1, and the budget is for @cpu */
	u64 cpu;
	unsigned int count;
};

enum mg_word {
	MG_MAXBW,
	MG_RECLAIM,
	MG_EXCLUSIVE,
	MG_RT,
	MG_PERIOD_US,
	MG_QMIN,
	MG_RESET,
};

/* struct mg_command - one setting of the control file */
struct mg_command {
	enum mg_word word;
	u64 value[2];
};

int mg_parse_limits(const char *text, enum mg_unit unit, struct mg_limits *limits,
		    struct mg_reservation *values, unsigned int room,
		    const char **why);
int mg_parse_control(const char *text, struct mg_command *command, const char **why);

#endif /* MEMGUARD_PARSE_H */
