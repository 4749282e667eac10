// SPDX-License-Identifier: GPL-2.0-only
/* The C half of misc.rs, threads.rs and client.rs, for mymem_test. */
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/task.h>

#include "../include/memwarden/version.h"
#include "misc-shim.c"
#include "test-shim.h"

/* A thread that runs, or an ERR_PTR; either way for mymem_test_shim_join() alone. */
struct task_struct *mymem_test_shim_thread(int (*run)(void *state), void *state,
					   unsigned int number)
{
	struct task_struct *task = kthread_create(run, state, "mymem_test/%u", number);

	if (!IS_ERR(task)) {
		/* The thread may end before kthread_stop(). */
		get_task_struct(task);
		wake_up_process(task);
	}
	return task;
}

int mymem_test_shim_join(struct task_struct *task)
{
	int err = kthread_stop(task);

	put_task_struct(task);
	return err;
}

bool mymem_test_shim_has_memory(size_t bytes)
{
	return si_mem_available() >= (long)(bytes >> PAGE_SHIFT);
}

MODULE_VERSION(MEMWARDEN_VERSION);
