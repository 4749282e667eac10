// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * random-writes COUNT SEED: COUNT random writes to every file of memguard's
 * directory of devices. A write must be accepted as a whole, or refused with EINVAL,
 * E2BIG or EOPNOTSUPP and leave every setting unchanged (checked after every
 * 16 refusals in a row). Ends with one line of counts; exits with 1 at the first
 * write that behaves differently.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIRECTORY "/dev/memguard"
#define LONGEST (20 * 1024)

static const char *const words[] = {
	"mb", "pct", "weight", "events", "max", "cpu", "cpu0", "cpu1", "cpu3",
	"cpu9", "maxbw", "reclaim", "exclusive", "rt", "period_us", "qmin",
	"reset", "0", "1", "2", "5", "10", "100", "500", "1000", "16384",
	"99999999", "1099511627775", "18446744073709551616", "-1", "1.5", "0x10",
	"", "mbb", "MB", ",", "\t", "\n",
};

static uint64_t state;

/* xorshift64*: Vigna, ACM TOMS 42(4), 2016. */
static uint32_t below(uint32_t n)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (uint32_t)((state * 0x2545F4914F6CDD1DULL) >> 32) % n;
}

/* Mostly nearly right lines, some noise, a few very long ones. */
static size_t make_text(char *text)
{
	size_t size = 0;

	if (below(8) == 0) {
		size = below(64) ? below(48) : below(LONGEST);
		for (size_t i = 0; i < size; i++)
			text[i] = (char)below(256);
		return size;
	}
	for (uint32_t n = below(7); n > 0; n--) {
		const char *word = words[below(sizeof(words) / sizeof(*words))];

		size += (size_t)sprintf(text + size, "%s ", word);
	}
	if (below(4) == 0)
		text[size++] = '\n';
	if (below(64) == 0)
		text[size ? below((uint32_t)size) : size++] = '\0';
	if (below(512) == 0) {
		size_t longer = below(LONGEST);

		for (; size < longer; size++)
			text[size] = ' ';
	}
	return size;
}

static size_t read_file(const char *name, char *buffer, size_t room)
{
	int fd = open(name, O_RDONLY);
	size_t size = 0;
	ssize_t got;

	if (fd < 0) {
		perror(name);
		exit(1);
	}
	while ((got = read(fd, buffer + size, room - size - 1)) > 0)
		size += (size_t)got;
	close(fd);
	buffer[size] = '\0';
	return size;
}

/* Everything that a write may set; the masks below "rt" change on their own. */
static void read_settings(char *buffer, size_t room)
{
	size_t size = read_file(DIRECTORY "/limit", buffer, room);
	char *masks;

	read_file(DIRECTORY "/control", buffer + size, room - size);
	masks = strstr(buffer + size, "online:");
	if (masks)
		*masks = '\0';
}

int main(int argc, char **argv)
{
	static char text[LONGEST + 4096], before[16384], after[16384];
	unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
	unsigned long taken = 0, refused = 0, files = 0;
	struct dirent *entry;
	DIR *directory = opendir(DIRECTORY);

	state = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
	if (!directory || !count || !state) {
		fprintf(stderr, "random-writes: give COUNT and SEED, with memguard loaded\n");
		return 1;
	}
	while ((entry = readdir(directory))) {
		char path[512];
		int fd;

		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), DIRECTORY "/%s", entry->d_name);
		fd = open(path, O_WRONLY);
		if (fd < 0) {
			perror(path);
			return 1;
		}
		files++;
		read_settings(before, sizeof(before));
		for (unsigned long i = 0; i < count; i++) {
			size_t size = make_text(text);
			ssize_t put = write(fd, text, size);

			if (put == (ssize_t)size) {
				taken++;
				read_settings(before, sizeof(before));
				continue;
			}
			if (put >= 0 || (errno != EINVAL && errno != E2BIG &&
					 errno != EOPNOTSUPP)) {
				printf("%s: write %lu of %zu bytes returned %zd, errno %d\n",
				       path, i, size, put, errno);
				return 1;
			}
			if (++refused % 16)
				continue;
			read_settings(after, sizeof(after));
			if (strcmp(before, after)) {
				printf("%s: a refused write up to %lu changed settings: %.*s\nbefore:\n%s\nafter:\n%s\n",
				       path, i, (int)size, text, before, after);
				return 1;
			}
		}
		close(fd);
	}
	closedir(directory);
	printf("files=%lu writes=%lu taken=%lu refused=%lu\n", files, files * count,
	       taken, refused);
	return 0;
}
