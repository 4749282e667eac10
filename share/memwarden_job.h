/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Marks the jobs of a program, for memwarden's --jobs-by mark:
 *
 *	uint64_t begin = memwarden_job_begin();
 *	decode_a_frame();
 *	memwarden_job_end(begin);
 *
 * memwarden_job_end_since(release, begin) counts from a planned release. Where
 * memwarden doesn't run the program, all of this does nothing.
 *
 * Needs POSIX.1-2008: -std=gnu99 or -D_POSIX_C_SOURCE=200809L.
 */
#ifndef MEMWARDEN_JOB_H
#define MEMWARDEN_JOB_H

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if !defined(CLOCK_MONOTONIC) || !defined(O_CLOEXEC)
#error "memwarden_job.h needs POSIX.1-2008: -std=gnu99 or -D_POSIX_C_SOURCE=200809L"
#endif

static inline uint64_t memwarden_job_begin(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline void memwarden_job_end_since(uint64_t release, uint64_t begin)
{
	static int pipe_of_marks = -2;
	uint64_t end = memwarden_job_begin();
	const char *path = getenv("MEMWARDEN_JOBS");

	if (pipe_of_marks == -2)
		pipe_of_marks = path ? open(path, O_WRONLY | O_CLOEXEC) : -1;
	if (pipe_of_marks >= 0)
		dprintf(pipe_of_marks, "%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", release, begin, end);
}

static inline void memwarden_job_end(uint64_t begin)
{
	memwarden_job_end_since(begin, begin);
}

#endif
