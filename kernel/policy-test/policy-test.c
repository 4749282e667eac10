// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of policy/, with the kernel's atomics. The last ones call it on
 * all CPUs at once with interrupts off, as memguard does.
 */
#include <kunit/test.h>
#include <linux/cpu.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/smp.h>

#include "policy.h"
#include "split.h"

#define BUDGET 1000
#define PERIODS 200

static struct mw_policy policy;
static DEFINE_PER_CPU(struct mw_core, cores);
static u64 period;

static const u64 nothing[MW_RESOURCES];

static void start(struct mw_core *core)
{
	mw_core_init(core);
	mw_set_budget(core, MW_READ, BUDGET);
	mw_core_online(&policy, core);
	mw_period_begin(&policy, core, period, false, nothing);
}

static int fresh_policy(struct kunit *test)
{
	mw_policy_init(&policy);
	period = 1;
	return 0;
}

static void a_core_runs_until_its_budget_is_used(struct kunit *test)
{
	struct mw_core *core = kunit_kzalloc(test, sizeof(*core), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, core);
	start(core);
	KUNIT_EXPECT_EQ(test, mw_until_overflow(core, MW_READ), BUDGET);
	KUNIT_EXPECT_EQ(test, mw_overflow(&policy, core, MW_READ, BUDGET), MW_THROTTLE);
	KUNIT_EXPECT_TRUE(test, core->throttled);
}

static void a_new_period_lets_it_run_again(struct kunit *test)
{
	struct mw_core *core = kunit_kzalloc(test, sizeof(*core), GFP_KERNEL);
	u64 used[MW_RESOURCES] = { BUDGET };

	KUNIT_ASSERT_NOT_NULL(test, core);
	start(core);
	mw_overflow(&policy, core, MW_READ, BUDGET);
	KUNIT_EXPECT_EQ(test, mw_period_begin(&policy, core, 2, false, used), MW_RUN);
	KUNIT_EXPECT_FALSE(test, core->throttled);
	KUNIT_EXPECT_EQ(test, mw_until_overflow(core, MW_READ), BUDGET);
}

static void a_budget_beyond_the_largest_is_refused(struct kunit *test)
{
	struct mw_core *core = kunit_kzalloc(test, sizeof(*core), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, core);
	mw_core_init(core);
	KUNIT_EXPECT_EQ(test, mw_set_budget(core, MW_READ, MW_UNLIMITED), 0);
	KUNIT_EXPECT_NE(test, mw_set_budget(core, MW_READ, MW_UNLIMITED + 1), 0);
	KUNIT_EXPECT_NE(test, mw_set_best_effort(&policy, 3), 0);
	KUNIT_EXPECT_NE(test, mw_set_reclaim(&policy, 2), 0);
}

static void a_core_that_went_offline_changes_nothing(struct kunit *test)
{
	struct mw_core *core = kunit_kzalloc(test, sizeof(*core), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, core);
	start(core);
	mw_core_offline(&policy, core);
	KUNIT_EXPECT_EQ(test, mw_overflow(&policy, core, MW_READ, BUDGET), MW_CONTINUE);
	KUNIT_EXPECT_EQ(test, mw_census_read(&policy).online, 0);
}

/* Until one of two counters interrupts, their sum is below what is left. */
static void two_counters_share_one_budget(struct kunit *test)
{
	static const u64 kinds[][MW_SPLIT] = { { BUDGET, 0 }, { 0, BUDGET }, { 300, 700 } };
	u64 counted[MW_SPLIT] = {}, share[MW_SPLIT], left;
	struct mw_split split = {};
	int i, interrupts;

	for (i = 0; i < ARRAY_SIZE(kinds); i++) {
		mw_split_left(&split, kinds[i], BUDGET, share);
		for (left = BUDGET, interrupts = 0; left; interrupts++) {
			int most = kinds[i][1] > kinds[i][0];

			KUNIT_ASSERT_EQ(test, share[0] - 1 + share[1] - 1, left - 1);
			counted[most] = share[most];
			counted[!most] = 0;
			left -= share[most];
			if (left)
				mw_split_left(&split, counted, left, share);
		}
		KUNIT_EXPECT_LE(test, interrupts, 12);
	}
	mw_split_left(&split, counted, MW_UNLIMITED, share);
	KUNIT_EXPECT_EQ(test, share[0], MW_UNLIMITED);
	KUNIT_EXPECT_EQ(test, share[1], MW_UNLIMITED);
}

/* What each CPU does with interrupts off, all of them at once. */

static void start_here(void *unused)
{
	start(this_cpu_ptr(&cores));
}

static void stop_here(void *unused)
{
	mw_core_offline(&policy, this_cpu_ptr(&cores));
}

static bool is_hungry(int cpu)
{
	return cpu % 2 == 0;
}

static void begin_period(void *unused)
{
	struct mw_core *core = this_cpu_ptr(&cores);
	u64 used[MW_RESOURCES] = { core->account[MW_READ].used };

	mw_period_begin(&policy, core, period, false, used);
}

/* A hungry core takes all that it gets, another one a tenth of its budget. */
static void use_budget(void *unused)
{
	struct mw_core *core = this_cpu_ptr(&cores);
	u64 used = 0;

	if (!is_hungry(smp_processor_id())) {
		core->account[MW_READ].used = BUDGET / 10;
		return;
	}
	do {
		used += mw_until_overflow(core, MW_READ);
	} while (mw_overflow(&policy, core, MW_READ, used) == MW_RUN);
	core->account[MW_READ].used = used;
}

static void no_event_is_granted_twice(struct kunit *test)
{
	u64 used, most = 0;
	int cpu;

	mw_set_reclaim(&policy, 1);
	cpus_read_lock();
	on_each_cpu(start_here, NULL, true);
	while (period < PERIODS) {
		on_each_cpu(use_budget, NULL, true);
		used = 0;
		for_each_online_cpu(cpu)
			used += per_cpu(cores, cpu).account[MW_READ].used;
		KUNIT_EXPECT_LE(test, used, (u64)BUDGET * num_online_cpus());
		most = max(most, used);
		period++;
		on_each_cpu(begin_period, NULL, true);
	}
	on_each_cpu(stop_here, NULL, true);
	/* The others left nine tenths: without them the hungry had half. */
	if (num_online_cpus() > 1)
		KUNIT_EXPECT_GT(test, most, (u64)BUDGET * num_online_cpus() * 9 / 10);
	cpus_read_unlock();
}

static atomic_t releases;

static void exhaust(void *unused)
{
	struct mw_core *core = this_cpu_ptr(&cores);

	if (mw_overflow(&policy, core, MW_READ, BUDGET) == MW_RELEASE_ALL)
		atomic_inc(&releases);
	core->account[MW_READ].used = BUDGET;
}

static void the_last_core_to_be_exhausted_is_told_once(struct kunit *test)
{
	mw_set_best_effort(&policy, MW_SPARE);
	cpus_read_lock();
	on_each_cpu(start_here, NULL, true);
	while (period < PERIODS) {
		atomic_set(&releases, 0);
		on_each_cpu(exhaust, NULL, true);
		KUNIT_EXPECT_EQ(test, atomic_read(&releases), 1);
		KUNIT_EXPECT_TRUE(test, mw_census_read(&policy).released);
		period++;
		on_each_cpu(begin_period, NULL, true);
	}
	on_each_cpu(stop_here, NULL, true);
	cpus_read_unlock();
}

static struct kunit_case cases[] = {
	KUNIT_CASE(a_core_runs_until_its_budget_is_used),
	KUNIT_CASE(a_new_period_lets_it_run_again),
	KUNIT_CASE(a_budget_beyond_the_largest_is_refused),
	KUNIT_CASE(a_core_that_went_offline_changes_nothing),
	KUNIT_CASE(two_counters_share_one_budget),
	KUNIT_CASE(no_event_is_granted_twice),
	KUNIT_CASE(the_last_core_to_be_exhausted_is_told_once),
	{}
};

static struct kunit_suite suite = {
	.name = "memwarden-policy",
	.init = fresh_policy,
	.test_cases = cases,
};

kunit_test_suite(suite);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("KUnit tests of memwarden's policy");
MODULE_AUTHOR("The memwarden authors");
