// SPDX-License-Identifier: GPL-2.0-only
/*
 * Loading and unloading. On failure and at the end, resources are released in the reverse order of
 * acquisition: the watch on task switches, the cores (now and as they come and go), the files.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/reboot.h>
#include <linux/workqueue.h>

#include "../include/memwarden/version.h"
#include "memguard.h"

static char *g_hw_type;
module_param(g_hw_type, charp, 0444);
MODULE_PARM_DESC(g_hw_type, "event by name: armv7, armv8, cortex-a53, nehalem, cache-misses, page-faults, ... (default, or auto: each processor's own memory-traffic event); per CPU as EVENT@FIRST-LAST,...");

static char *g_read_counter_id;
module_param(g_read_counter_id, charp, 0444);
MODULE_PARM_DESC(g_read_counter_id, "raw event that counts reads, as in 0x17, or 0x1b7:config1=0x10800, or two of them as in 0x4843+0xff72");

static char *g_write_counter_id;
module_param(g_write_counter_id, charp, 0444);
MODULE_PARM_DESC(g_write_counter_id, "event that counts write-backs, raw as in 0x18, or by name; per CPU as EVENT@FIRST-LAST,...");

static bool combined;
module_param(combined, bool, 0444);
MODULE_PARM_DESC(combined, "one budget for each core holds reads and write-backs together (default: reads, and writes in write_limit)");

static char *cpus;
module_param(cpus, charp, 0444);
MODULE_PARM_DESC(cpus, "CPUs to regulate, as in 1-3; all others are left alone (default: all)");

static unsigned int bytes_per_event;
module_param(bytes_per_event, uint, 0444);
MODULE_PARM_DESC(bytes_per_event, "memory traffic per event (default: 64, or a page for page-faults)");

static bool user_only;
module_param(user_only, bool, 0444);
MODULE_PARM_DESC(user_only, "count user-mode traffic only (default: the kernel's too)");

static unsigned int period_us = 1000;
module_param(period_us, uint, 0444);
MODULE_PARM_DESC(period_us, "regulation period (default 1000, 50 to 1000000)");

static unsigned int maxbw = 1200;
module_param(maxbw, uint, 0444);
MODULE_PARM_DESC(maxbw, "guaranteed memory bandwidth in MiB/s, for pct and weight (default 1200)");

static char *idle = "wait";
module_param(idle, charp, 0444);
MODULE_PARM_DESC(idle, "how a throttled core waits: wait (halts, default) or poll (spins)");

DEFINE_STATIC_KEY_FALSE(mg_two_events);

struct mg_guard mg_guard = {
	.lock = __MUTEX_INITIALIZER(mg_guard.lock),
};

static enum cpuhp_state hotplug_state;

static void nothing(void *unused)
{
}

/*
 * perf takes the hotplug lock, so a hotplug callback can neither create nor release counters. The
 * callback only stops a core that goes offline; this work does the rest soon after, for all cores
 * at once.
 */
static DEFINE_MUTEX(following);
static bool unloading; /* no core starts any more */

/* Another user's event may go away, and there may be memory or processes again. */
static bool may_pass(int err)
{
	return err == -EBUSY || err == -ENOMEM || err == -EAGAIN;
}

/* Returns the first error; @passing: an error, perhaps another one, that may pass, or 0 */
static int follow_cpus(int *passing)
{
	int cpu, err, first = 0;

	*passing = 0;
	mutex_lock(&following);
	for_each_cpu(cpu, &mg_guard.cpus) {
		if (unloading)
			break;
		/* A core that is being stopped queues this work again when it has stopped. */
		if (!mg_core_is_idle(cpu))
			continue;
		mg_core_close(cpu);
		err = mg_core_start(cpu);
		if (err && !first)
			first = err;
		if (may_pass(err) && !*passing)
			*passing = err;
	}
	mutex_unlock(&following);
	return first;
}

static void follow_cpus_later(struct work_struct *work);
static DECLARE_WORK(follow_work, follow_cpus_later);

static void follow_cpus_again(struct work_struct *work)
{
	schedule_work(&follow_work);
}

static DECLARE_DELAYED_WORK(again_work, follow_cpus_again);

/* Each attempt has a line in the log, so they become rarer. */
#define AGAIN_MAX_S 64U

static void follow_cpus_later(struct work_struct *work)
{
	static unsigned int again_s;
	int passing, err = follow_cpus(&passing);

	again_s = passing ? clamp(2 * again_s, 1U, AGAIN_MAX_S) : 0;
	if (again_s) {
		pr_err("a core that came online is not regulated, as %s (error %d): next attempt in %u s\n",
		       passing == -EBUSY ? "another user has its counter" :
					   "the kernel is short of memory or processes",
		       passing, again_s);
		schedule_delayed_work(&again_work, again_s * HZ);
	} else if (err) {
		pr_err("a core that came online is not regulated: error %d\n", err);
	}
}

/* The machine is going down, and perf has removed its events or is about to. */
static bool going_down;

/* A counter is lost; perf can mend it only outside of interrupts. */
static void mend_counters(struct work_struct *work)
{
	int cpu, r;

	if (READ_ONCE(going_down))
		return;
	mutex_lock(&following);
	for_each_cpu(cpu, &mg_guard.cpus) {
		struct mg_core *core = &per_cpu(mg_cores, cpu);

		/* A core that went offline has no counters to mend. */
		if (!READ_ONCE(core->regulated))
			continue;
		for (r = 0; r < MW_RESOURCES; r++)
			mg_counter_mend(&core->counter[r]);
	}
	mutex_unlock(&following);
}

static DECLARE_WORK(mend_work, mend_counters);

static void mend_later(struct irq_work *unused)
{
	schedule_work(&mend_work);
}

static DEFINE_IRQ_WORK(mend_interrupt, mend_later);

/**
 * mg_mend_counters() - have lost counters mended soon
 *
 * May be called in any context, including the scheduler. Queueing work wakes a worker, which there
 * would wait for a lock that this CPU holds; so an irq_work queues the work.
 */
void mg_mend_counters(void)
{
	irq_work_queue(&mend_interrupt);
}

static int before_reboot(struct notifier_block *block, unsigned long action, void *unused)
{
	WRITE_ONCE(going_down, true);
	cancel_work_sync(&mend_work);
	return NOTIFY_DONE;
}

/* Called before perf's own notifier, which has the lowest priority. */
static struct notifier_block reboot_block = { .notifier_call = before_reboot };

static int core_online(unsigned int cpu)
{
	if (!cpumask_test_cpu(cpu, &mg_guard.cpus))
		return 0;
	WRITE_ONCE(per_cpu(mg_cores, cpu).leaving, false);
	schedule_work(&follow_work);
	return 0;
}

static int core_offline(unsigned int cpu)
{
	if (!cpumask_test_cpu(cpu, &mg_guard.cpus))
		return 0;
	mg_core_stop(cpu);
	schedule_work(&follow_work);
	return 0;
}

static void stop_following(void)
{
	int cpu;

	mutex_lock(&following);
	unloading = true;
	mutex_unlock(&following);
	/* Stops every core; afterwards nothing regulates, and nothing is queued. */
	cpuhp_remove_state(hotplug_state);
	cancel_work_sync(&follow_work);
	cancel_delayed_work_sync(&again_work);
	/* The attempt that was due has queued it. */
	cancel_work_sync(&follow_work);
	irq_work_sync(&mend_interrupt);
	cancel_work_sync(&mend_work);
	for_each_cpu(cpu, &mg_guard.cpus)
		mg_core_close(cpu);
	/* A kick that is still on its way arrives before this. */
	on_each_cpu_mask(&mg_guard.cpus, nothing, NULL, true);
}

static int check_parameters(void)
{
	if (period_us < MG_PERIOD_MIN_US || period_us > MG_PERIOD_MAX_US) {
		pr_err("period_us=%u: give %u to %u\n", period_us,
		       MG_PERIOD_MIN_US, MG_PERIOD_MAX_US);
		return -EINVAL;
	}
	if (!maxbw || maxbw > MG_MB_LIMIT) {
		pr_err("maxbw=%u: give 1 to %llu\n", maxbw, MG_MB_LIMIT);
		return -EINVAL;
	}
	if (bytes_per_event > 1U << 20) {
		pr_err("bytes_per_event=%u: give 1 to %u\n", bytes_per_event, 1U << 20);
		return -EINVAL;
	}
	if (strcmp(idle, "wait") && strcmp(idle, "poll")) {
		pr_err("idle=%s: give wait or poll\n", idle);
		return -EINVAL;
	}
	return 0;
}

static int choose_cpus(void)
{
	struct cpumask *chosen = &mg_guard.cpus;

	cpumask_copy(chosen, cpu_possible_mask);
	if (cpus && (cpulist_parse(cpus, chosen) || cpumask_empty(chosen) ||
		     !cpumask_subset(chosen, cpu_possible_mask))) {
		pr_err("cpus=%s: give CPUs of this machine, %*pbl\n", cpus,
		       cpumask_pr_args(cpu_possible_mask));
		return -EINVAL;
	}
	if (cpumask_weight(chosen) > MW_MAX_CORES) {
		pr_err("%u possible cores: at most %u can be regulated; choose them with cpus=\n",
		       cpumask_weight(chosen), MW_MAX_CORES);
		return -E2BIG;
	}
	return 0;
}

static void say_what_is_regulated(void)
{
	const struct mg_event *event = NULL;
	unsigned int cpu, cores = 0;
	bool differ = false;

	cpus_read_lock();
	for_each_mg_cpu(cpu) {
		const struct mg_event *other = &per_cpu(mg_cores, cpu).event;

		if (!READ_ONCE(per_cpu(mg_cores, cpu).regulated))
			continue;
		if (!event)
			event = other;
		differ |= event->name != other->name;
		cores++;
	}
	cpus_read_unlock();
	pr_info("regulating %u cores every %u us by %s\n", cores, period_us,
		differ ? "different events" : event ? event->name : "no event");
}

static int __init memguard_init(void)
{
	int passing, err = check_parameters();

	if (!err)
		err = choose_cpus();
	if (err)
		return err;
	mw_policy_init(&mg_guard.policy);
	mg_cores_init();
	mg_guard.combined = combined;
	cpus_read_lock();
	err = mg_events_choose(g_hw_type, g_read_counter_id, g_write_counter_id,
			       bytes_per_event);
	cpus_read_unlock();
	if (err)
		return err;
	if (mg_two_events_chosen())
		static_branch_enable(&mg_two_events);
	raw_spin_lock_init(&mg_guard.clock_lock);
	seqcount_raw_spinlock_init(&mg_guard.clock_seq, &mg_guard.clock_lock);
	mg_guard.clock = (struct mg_clock){
		.phase = ktime_get_ns(),
		.period_ns = (u64)period_us * NSEC_PER_USEC,
	};
	mg_guard.maxbw = maxbw;
	mg_guard.user_only = user_only;
	mg_guard.poll = !strcmp(idle, "poll");

	err = mg_watch_switches();
	if (err)
		return err;
	err = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "memguard:online",
					core_online, core_offline);
	if (err < 0)
		goto unwatch_switches;
	hotplug_state = err;
	err = follow_cpus(&passing);
	if (err)
		goto stop_following;
	err = mg_files_create();
	if (err) {
		pr_err("no files in /dev/memguard/: error %d\n", err);
		goto stop_following;
	}
	register_reboot_notifier(&reboot_block);
	say_what_is_regulated();
	return 0;

stop_following:
	stop_following();
unwatch_switches:
	mg_unwatch_switches();
	return err;
}

static void __exit memguard_exit(void)
{
	/* All that follows may wait for a core's ordinary threads. No file is open any more. */
	mg_free_all();
	unregister_reboot_notifier(&reboot_block);
	mg_files_remove();
	stop_following();
	mg_unwatch_switches();
}

module_init(memguard_init);
module_exit(memguard_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Per-core memory-bandwidth regulation");
MODULE_AUTHOR("The memwarden authors");
MODULE_VERSION(MEMWARDEN_VERSION);
