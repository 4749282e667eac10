// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Tests the parsers of memguard's files without a kernel: each row is an input,
 * the errno that the writer gets, and a word of the reason. Prints one TAP line
 * for each row.
 *
 *   gcc -fsanitize=address,undefined -I../../policy -I../../kernel/memguard \
 *       parse-test.c ../../kernel/memguard/parse.c -o parse-test && ./parse-test
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "parse.h"

#define CORES 4

static int number_of_tests, failed;

static void report(bool ok, const char *file, const char *text, const char *got)
{
	char shown[80];
	size_t n = 0;

	for (; *text && n + 3 < sizeof(shown); text++) {
		if (*text == '\n') {
			shown[n++] = '\\';
			shown[n++] = 'n';
		} else {
			shown[n++] = *text;
		}
	}
	shown[n] = '\0';
	if (!ok)
		failed++;
	printf("%sok %d - %s: \"%s\" -> %s\n", ok ? "" : "not ", ++number_of_tests,
	       file, shown, got);
}

struct limits_row {
	const char *text;
	int err;
	const char *why; /* part of the reason, for a refusal */
	enum mg_unit unit; /* and the parsed unit, for a success */
	unsigned int count;
	u64 first;
};

static const struct limits_row limits_rows[] = {
	{ "1000 100 100 100", 0, NULL, MG_EVENTS, 4, 1000 },
	{ "mb 1000 100 100 100\n", 0, NULL, MG_MB, 4, 1000 },
	{ "mb 1000", 0, NULL, MG_MB, 1, 1000 },
	{ "pct 50 10 10 10", 0, NULL, MG_PCT, 4, 50 },
	{ "weight 4 1 1 1", 0, NULL, MG_WEIGHT, 4, 4 },
	{ "events 7", 0, NULL, MG_EVENTS, 1, 7 },
	{ "cpu3 mb 100", 0, NULL, MG_MB, 1, 100 },
	{ "cpu0 5", 0, NULL, MG_EVENTS, 1, 5 },
	{ "max 20 20 20", 0, NULL, MG_MAX, 4, 0 },
	{ "mb max 20", 0, NULL, MG_MAX, 2, 0 },
	{ "\t mb\t 1 \n\n", 0, NULL, MG_MB, 1, 1 },
	{ "1099511627774", 0, NULL, MG_EVENTS, 1, 1099511627774ULL },
	{ "", -EINVAL, "no budget", 0, 0, 0 },
	{ "\n", -EINVAL, "no budget", 0, 0, 0 },
	{ "mb", -EINVAL, "no budget", 0, 0, 0 },
	{ "cpu1", -EINVAL, "no budget", 0, 0, 0 },
	{ "cpu", -EINVAL, "number", 0, 0, 0 },
	{ "cpux mb 1", -EINVAL, "number", 0, 0, 0 },
	{ "cpu99999999999999999999 mb 1", -EINVAL, "number", 0, 0, 0 },
	{ "mb 0", -EINVAL, "above 0", 0, 0, 0 },
	{ "mb -1", -EINVAL, "above 0", 0, 0, 0 },
	{ "mb +1", -EINVAL, "above 0", 0, 0, 0 },
	{ "mb 1.5", -EINVAL, "above 0", 0, 0, 0 },
	{ "mb 0x10", -EINVAL, "above 0", 0, 0, 0 },
	{ "mb ten", -EINVAL, "above 0", 0, 0, 0 },
	{ "mb 10000001", -EINVAL, "range", 0, 0, 0 },
	{ "pct 101", -EINVAL, "range", 0, 0, 0 },
	{ "weight 1000001", -EINVAL, "range", 0, 0, 0 },
	{ "1099511627775", -EINVAL, "range", 0, 0, 0 },
	{ "18446744073709551616", -EINVAL, "range", 0, 0, 0 },
	{ "99999999999999999999999999", -EINVAL, "range", 0, 0, 0 },
	{ "kb 1", -EINVAL, "above 0", 0, 0, 0 },
	{ "mb mb 1", -EINVAL, "above 0", 0, 0, 0 },
	{ "mb 1 2 3 x", -EINVAL, "above 0", 0, 0, 0 },
	{ "mb 1 2 3 4 5", -E2BIG, "more budgets", 0, 0, 0 },
	{ "cpu1 mb 1 2", -E2BIG, "one budget", 0, 0, 0 },
};

static void test_limits(const struct limits_row *row)
{
	struct mg_reservation values[CORES];
	struct mg_limits limits;
	const char *why = "";
	char got[256];
	int err;
	bool ok;

	memset(values, 0xff, sizeof(values));
	err = mg_parse_limits(row->text, MG_EVENTS, &limits, values, CORES, &why);
	ok = err == row->err;
	if (err)
		ok = ok && strstr(why, row->why);
	else
		ok = ok && limits.count == row->count &&
		     values[0].unit == row->unit && values[0].value == row->first;
	snprintf(got, sizeof(got), "%s%s%s",
		 err == -EINVAL ? "EINVAL" : err == -E2BIG ? "E2BIG" : "taken",
		 err ? ": " : "", err ? why : "");
	report(ok, "limit", row->text, got);
}

struct control_row {
	const char *text;
	int err;
	const char *why;
	enum mg_word word;
	u64 first;
	u64 second;
};

static const struct control_row control_rows[] = {
	{ "maxbw 1200\n", 0, NULL, MG_MAXBW, 1200, 0 },
	{ "reclaim 1", 0, NULL, MG_RECLAIM, 1, 0 },
	{ "exclusive 5", 0, NULL, MG_EXCLUSIVE, 5, 0 },
	{ "rt 3 1", 0, NULL, MG_RT, 3, 1 },
	{ "period_us 500", 0, NULL, MG_PERIOD_US, 500, 0 },
	{ "qmin 16", 0, NULL, MG_QMIN, 16, 0 },
	{ "reset", 0, NULL, MG_RESET, 0, 0 },
	{ "", -EINVAL, "no setting", 0, 0, 0 },
	{ "resett", -EINVAL, "unknown", 0, 0, 0 },
	{ "RECLAIM 1", -EINVAL, "unknown", 0, 0, 0 },
	{ "reclaim", -EINVAL, "must follow", 0, 0, 0 },
	{ "rt 1", -EINVAL, "must follow", 0, 0, 0 },
	{ "reclaim yes", -EINVAL, "must follow", 0, 0, 0 },
	{ "reclaim 1 1", -EINVAL, "more words", 0, 0, 0 },
	{ "reset now", -EINVAL, "more words", 0, 0, 0 },
	{ "maxbw 1\nreclaim 1", -EINVAL, "more words", 0, 0, 0 },
	{ "maxbw 99999999999999999999", -EINVAL, "must follow", 0, 0, 0 },
};

static void test_control(const struct control_row *row)
{
	struct mg_command command = { 0 };
	const char *why = "";
	int err = mg_parse_control(row->text, &command, &why);
	char got[256];
	bool ok = err == row->err;

	if (err)
		ok = ok && strstr(why, row->why);
	else
		ok = ok && command.word == row->word &&
		     command.value[0] == row->first &&
		     command.value[1] == row->second;
	snprintf(got, sizeof(got), "%s%s%s", err ? "EINVAL" : "taken",
		 err ? ": " : "", err ? why : "");
	report(ok, "control", row->text, got);
}

int main(void)
{
	size_t i;

	for (i = 0; i < sizeof(limits_rows) / sizeof(*limits_rows); i++)
		test_limits(&limits_rows[i]);
	for (i = 0; i < sizeof(control_rows) / sizeof(*control_rows); i++)
		test_control(&control_rows[i]);
	printf("1..%d\n", number_of_tests);
	return failed != 0;
}
