// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fail-nth STRIDE MODULE FILE: loads a module again and again. Each time another of the
 * kernel's allocations fails (the first, the STRIDE-th after that, ...;
 * Documentation/fault-injection), until a load has no more allocations. A failed load
 * must leave neither the module nor /dev/MODULE. Needs failslab and fail_page_alloc.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	int bad;

	if (fd < 0)
		return 1;
	bad = write(fd, text, strlen(text)) < 0;
	close(fd);
	return bad;
}

enum outcome { LOADED, LOADED_IN_SPITE, FAILED, NO_INJECTION };

/* In a child process, since the kernel counts allocations to fail for each task. */
static enum outcome load(const char *file, int nth)
{
	int status;
	pid_t child = fork();

	if (!child) {
		char text[16];
		int module = open(file, O_RDONLY | O_CLOEXEC);
		int fail = open("/proc/thread-self/fail-nth", O_RDWR);
		int length = sprintf(text, "%d", nth), bad, left;

		if (module < 0 || fail < 0 || write(fail, text, length) != length) {
			perror("fail-nth: asking for a failure");
			_exit(NO_INJECTION);
		}
		bad = syscall(SYS_finit_module, module, "", 0);
		/* It reads 0 when the allocation has failed. */
		length = pread(fail, text, sizeof(text) - 1, 0);
		text[length < 0 ? 0 : length] = 0;
		left = atoi(text);
		if (pwrite(fail, "0", 1, 0) != 1)
			_exit(NO_INJECTION);
		_exit(bad ? FAILED : left ? LOADED : LOADED_IN_SPITE);
	}
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
		return NO_INJECTION;
	return WEXITSTATUS(status);
}

static int is_loaded(const char *module)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/module/%s", module);
	return !access(path, F_OK);
}

/* More allocations than any module's load makes. */
#define MOST 20000

int main(int argc, char **argv)
{
	int stride = argc == 4 ? atoi(argv[1]) : 0, failures = 0;
	char device[128];

	if (stride <= 0) {
		fprintf(stderr, "fail-nth STRIDE MODULE FILE\n");
		return 2;
	}
	snprintf(device, sizeof(device), "/dev/%s", argv[2]);
	if (put("/sys/kernel/debug/failslab/ignore-gfp-wait", "N") ||
	    put("/sys/kernel/debug/failslab/verbose", "0") ||
	    put("/sys/kernel/debug/fail_page_alloc/ignore-gfp-wait", "N") ||
	    put("/sys/kernel/debug/fail_page_alloc/min-order", "0") ||
	    put("/sys/kernel/debug/fail_page_alloc/verbose", "0")) {
		fprintf(stderr, "this kernel injects no failures: %s\n", strerror(errno));
		return 2;
	}
	for (int nth = 1; nth <= MOST; nth += stride) {
		enum outcome outcome = load(argv[3], nth);

		if (outcome == NO_INJECTION) {
			printf("failure %d could not be asked for\n", nth);
			return 1;
		}
		if (outcome == FAILED && (is_loaded(argv[2]) || !access(device, F_OK))) {
			printf("failure %d: the load failed, and left something behind\n", nth);
			return 1;
		}
		failures += outcome != LOADED;
		if (outcome != FAILED && syscall(SYS_delete_module, argv[2], O_NONBLOCK)) {
			printf("failure %d: unloading failed: %s\n", nth, strerror(errno));
			return 1;
		}
		if (outcome == LOADED) {
			printf("loaded after %d failures\n", failures);
			return 0;
		}
	}
	printf("still failing after %d\n", MOST);
	return 1;
}
