// SPDX-License-Identifier: GPL-2.0-only
/* Words and numbers from the files; see parse.h. */
#ifdef __KERNEL__
#include <linux/kernel.h>
#include <linux/string.h>
#else
#include <string.h>
#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#endif

#include "parse.h"

struct word {
	const char *start;
	size_t length;
};

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Take the next word from @text; false at the end. */
static bool next_word(const char **text, struct word *word)
{
	while (is_blank(**text))
		(*text)++;
	word->start = *text;
	while (**text && !is_blank(**text))
		(*text)++;
	word->length = *text - word->start;
	return word->length;
}

static bool word_is(const struct word *word, const char *name)
{
	return strlen(name) == word->length &&
	       !strncmp(word->start, name, word->length);
}

/* Only decimal digits, at most @limit. */
static int number(const struct word *word, u64 limit, u64 *value)
{
	size_t i;

	*value = 0;
	if (!word->length)
		return -EINVAL;
	for (i = 0; i < word->length; i++) {
		unsigned int digit = word->start[i] - '0';

		if (digit > 9)
			return -EINVAL;
		if (*value > (limit - digit) / 10)
			return -EINVAL;
		*value = *value * 10 + digit;
	}
	return 0;
}

static u64 unit_limit(enum mg_unit unit)
{
	switch (unit) {
	case MG_MB:
		return MG_MB_LIMIT;
	case MG_PCT:
		return 100;
	case MG_WEIGHT:
		return MG_WEIGHT_LIMIT;
	default:
		return (1ULL << 40) - 2;
	}
}

/**
 * mg_parse_limits() - parse budgets, one for each core
 * @text: terminated by NUL
 * @unit: unit of plain numbers
 * @limits: set to the core they are for, if only one, and their number
 * @values: where to store them
 * @room: how many fit in @values
 * @why: set to the reason for an error
 *
 * Return: 0, -EINVAL, or -E2BIG for more values than @room.
 */
int mg_parse_limits(const char *text, enum mg_unit unit, struct mg_limits *limits,
		    struct mg_reservation *values, unsigned int room,
		    const char **why)
{
	static const struct {
		const char *name;
		enum mg_unit unit;
	} units[] = {
		{ "mb", MG_MB },
		{ "pct", MG_PCT },
		{ "weight", MG_WEIGHT },
		{ "events", MG_EVENTS },
	};
	struct word word;
	bool more = next_word(&text, &word);
	size_t i;

	limits->one_cpu = false;
	limits->cpu = 0;
	limits->count = 0;
	if (more && word.length >= 3 && !strncmp(word.start, "cpu", 3)) {
		struct word digits = { word.start + 3, word.length - 3 };

		*why = "cpu must be followed by its number, as in cpu3";
		if (number(&digits, MG_CPU_LIMIT, &limits->cpu))
			return -EINVAL;
		limits->one_cpu = true;
		room = room ? 1 : 0;
		more = next_word(&text, &word);
	}
	for (i = 0; more && i < ARRAY_SIZE(units); i++) {
		if (!word_is(&word, units[i].name))
			continue;
		unit = units[i].unit;
		more = next_word(&text, &word);
		break;
	}
	*why = "no budget given: write for example mb 1000 100 100 100";
	if (!more)
		return -EINVAL;
	for (; more; more = next_word(&text, &word)) {
		struct mg_reservation *value = &values[limits->count];

		*why = limits->one_cpu ? "one budget only after a cpu" :
					 "more budgets than online cores";
		if (limits->count == room)
			return -E2BIG;
		limits->count++;
		value->unit = word_is(&word, "max") ? MG_MAX : unit;
		value->value = 0;
		if (value->unit == MG_MAX)
			continue;
		*why = "a budget must be a whole number above 0 and within its unit's range, or max";
		if (number(&word, unit_limit(unit), &value->value) || !value->value)
			return -EINVAL;
	}
	return 0;
}

/**
 * mg_parse_control() - parse one setting
 * @text: terminated by NUL
 * @command: set to the setting and its values, whose ranges are not yet checked
 * @why: set to the reason for an error
 *
 * Return: 0 or -EINVAL.
 */
int mg_parse_control(const char *text, struct mg_command *command, const char **why)
{
	static const struct {
		const char *name;
		enum mg_word word;
		unsigned int values;
	} words[] = {
		{ "maxbw", MG_MAXBW, 1 },
		{ "reclaim", MG_RECLAIM, 1 },
		{ "exclusive", MG_EXCLUSIVE, 1 },
		{ "rt", MG_RT, 2 },
		{ "period_us", MG_PERIOD_US, 1 },
		{ "qmin", MG_QMIN, 1 },
		{ "reset", MG_RESET, 0 },
	};
	struct word word;
	unsigned int v;
	size_t i;

	*why = "no setting given: maxbw N, reclaim 0|1, exclusive 0|2|5, rt CPU 0|1, period_us N, qmin N or reset";
	if (!next_word(&text, &word))
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(words); i++)
		if (word_is(&word, words[i].name))
			break;
	*why = "unknown setting: maxbw, reclaim, exclusive, rt, period_us, qmin and reset exist";
	if (i == ARRAY_SIZE(words))
		return -EINVAL;
	command->word = words[i].word;
	for (v = 0; v < words[i].values; v++) {
		*why = "a whole number below 2^40 must follow the setting's name";
		if (!next_word(&text, &word) ||
		    number(&word, (1ULL << 40) - 1, &command->value[v]))
			return -EINVAL;
	}
	*why = "more words than the setting takes; one setting a write";
	if (next_word(&text, &word))
		return -EINVAL;
	return 0;
}
