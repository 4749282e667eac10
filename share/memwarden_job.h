/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Marks the jobs of a program, for memwarden's --jobs-by mark:
 *
 *	uint64_t begin = memwarden_job_begin();
 *	decode_a_frame();
 *	memwarden_job_end(begin);
 *
 * memwarden_job_end_since(release, begin) counts from a planned release. Where
 * memwarden doesn't run the program, or has ended, all of this does nothing.
 *
 * Needs POSIX.1-2008: -std=gnu99 or -D_POSIX_C_SOURCE=200809L.
 */
#ifndef MEMWARDEN_JOB_H
#define MEMWARDEN_JOB_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if !defined(CLOCK_MONOTONIC) || !defined(O_CLOEXEC)
#error "memwarden_job.h needs POSIX.1-2008: -std=gnu99 or -D_POSIX_C_SOURCE=200809L"
#endif

static inline uint64_t memwarden_job_begin(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Opens memwarden's pipe; -2 if there is none, or nothing reads it. */
static inline int memwarden_job_open(struct stat *opened)
{
	const char *path = getenv("MEMWARDEN_JOBS");
	/* Without O_NONBLOCK, open() would wait for a reader. */
	int fd = path ? open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK) : -1;

	if (fd < 0)
		return -2;
	/* Writes wait while the pipe is full, so that no mark is lost. */
	if (!fstat(fd, opened) && S_ISFIFO(opened->st_mode) && !fcntl(fd, F_SETFL, 0))
		return fd;
	close(fd);
	return -2;
}

/* Writes without a SIGPIPE; false if nothing reads the pipe any more. */
static inline int memwarden_job_write(int fd, const char *line, size_t length)
{
	const struct timespec at_once = { 0, 0 };
	sigset_t sigpipe, before;
	ssize_t written;
	int is_read;

	sigemptyset(&sigpipe);
	sigaddset(&sigpipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &sigpipe, &before);
	do {
		written = write(fd, line, length);
	} while (written < 0 && errno == EINTR);
	is_read = written >= 0 || errno != EPIPE;
	if (!is_read)
		sigtimedwait(&sigpipe, NULL, &at_once);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return is_read;
}

static inline void memwarden_job_end_since(uint64_t release, uint64_t begin)
{
	/* -1 before the first mark, -2 if there is nothing to write to. */
	static int marks = -1;
	static struct stat opened;
	uint64_t end = memwarden_job_begin();
	int error = errno;
	struct stat now;
	char line[64];
	int length;

	if (marks == -2)
		return;
	/* The program may have closed the pipe; the number then belongs to no file or to another. */
	if (marks < 0 || fstat(marks, &now) || now.st_dev != opened.st_dev ||
	    now.st_ino != opened.st_ino)
		marks = memwarden_job_open(&opened);
	length = snprintf(line, sizeof(line), "%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", release, begin,
			  end);
	if (marks >= 0 && !memwarden_job_write(marks, line, (size_t)length))
		marks = -2;
	errno = error;
}

static inline void memwarden_job_end(uint64_t begin)
{
	memwarden_job_end_since(begin, begin);
}

#endif
