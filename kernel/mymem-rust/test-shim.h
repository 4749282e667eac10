/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef TEST_SHIM_H
#define TEST_SHIM_H

#include <linux/sched.h>
#include <linux/types.h>

struct task_struct *mymem_test_shim_thread(int (*run)(void *state), void *state,
					   unsigned int number);
int mymem_test_shim_join(struct task_struct *task);
bool mymem_test_shim_has_memory(size_t bytes);

#endif /* TEST_SHIM_H */
