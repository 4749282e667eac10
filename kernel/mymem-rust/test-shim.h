/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef TEST_SHIM_H
#define TEST_SHIM_H

#include <linux/sched.h>

struct task_struct *mymem_test_shim_thread(int (*run)(void *state), void *state,
					   unsigned int number);
int mymem_test_shim_join(struct task_struct *task);

#endif /* TEST_SHIM_H */
