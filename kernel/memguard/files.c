// SPDX-License-Identifier: GPL-2.0-only
/*
 * The files: MemGuard's classic ones and new ones. They are devices in /dev/memguard/, and also
 * files in /sys/kernel/debug/memguard/, as in MemGuard. Only the devices exist if the kernel is
 * locked down (Secure Boot), or was built or booted without debugfs.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/math64.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "memguard.h"

/* Room for a ten-digit budget on each of some thousand cores. */
#define WRITE_LIMIT (16 * 1024)

static struct dentry *view; /* in debugfs */

/* ---- writing: the whole text is checked before anything changes ---- */

/* Serialises writers, so that each logged message belongs to its own write. */
static DEFINE_MUTEX(writing);

static ssize_t write_setting(struct file *file, const char __user *from, size_t size,
			     int (*set)(const char *text, const char **why))
{
	const char *why = "";
	char *text;
	int err;

	if (size > WRITE_LIMIT)
		return -E2BIG;
	text = memdup_user_nul(from, size);
	if (IS_ERR(text))
		return PTR_ERR(text);
	mutex_lock(&writing);
	if (strlen(text) != size) {
		why = "the text has a NUL byte in it";
		err = -EINVAL;
	} else {
		err = set(text, &why);
	}
	if (err == -EINVAL || err == -E2BIG || err == -EOPNOTSUPP)
		pr_warn_ratelimited("%s: %s\n", file_dentry(file)->d_name.name, why);
	mutex_unlock(&writing);
	kfree(text);
	return err ?: size;
}

static int set_read_limits(const char *text, const char **why)
{
	return mg_set_limits(MW_READ, text, why);
}

static int set_write_limits(const char *text, const char **why)
{
	return mg_set_limits(MW_WRITE, text, why);
}

static int set_failcnt(const char *text, const char **why)
{
	cpus_read_lock();
	mg_reset_stats();
	cpus_read_unlock();
	return 0;
}

/* ---- reading ---- */

static u64 pct_of_maxbw(u64 mb)
{
	return div64_u64(mb * 100 + mg_guard.maxbw / 2, mg_guard.maxbw);
}

static void show_limits(struct seq_file *m, enum mw_resource resource)
{
	int cpu;

	seq_puts(m, "cpu  |budget (MB/s,pct,weight)\n");
	seq_puts(m, "-------------------------------\n");
	cpus_read_lock();
	mutex_lock(&mg_guard.lock);
	for_each_mg_cpu(cpu) {
		struct mg_core *core = &per_cpu(mg_cores, cpu);
		const struct mg_reservation *as = &core->reservation[resource];
		u64 events = core->wanted[resource];
		u64 mb = as->unit == MG_MB ? as->value : mg_mb(events);

		if (events == MW_UNLIMITED)
			seq_printf(m, "CPU%d: max\n", cpu);
		else
			seq_printf(m, "CPU%d: %llu (%lluMB/s, %llu pct, w%llu)\n",
				   cpu, events, mb, pct_of_maxbw(mb),
				   as->unit == MG_WEIGHT ? as->value : 0);
	}
	mutex_unlock(&mg_guard.lock);
	cpus_read_unlock();
}

static int limit_show(struct seq_file *m, void *unused)
{
	show_limits(m, MW_READ);
	return 0;
}

static int write_limit_show(struct seq_file *m, void *unused)
{
	if (mg_guard.combined) {
		seq_puts(m, "not supported: one budget holds reads and writes together (combined=1): see limit\n");
		return 0;
	}
	if (!mg_counts_writes()) {
		seq_puts(m, "not supported: no event that counts write-backs (g_write_counter_id=)\n");
		return 0;
	}
	show_limits(m, MW_WRITE);
	return 0;
}

static int share_show(struct seq_file *m, void *unused)
{
	int cpu;

	cpus_read_lock();
	for_each_mg_cpu(cpu) {
		const struct mg_reservation *as =
			&per_cpu(mg_cores, cpu).reservation[MW_READ];

		seq_printf(m, "CPU%d: %llu\n", cpu,
			   as->unit == MG_WEIGHT ? as->value : 0);
	}
	cpus_read_unlock();
	return 0;
}

static int failcnt_show(struct seq_file *m, void *unused)
{
	int cpu;

	cpus_read_lock();
	for_each_mg_cpu(cpu)
		seq_printf(m, "CPU%d: %llu\n", cpu,
			   READ_ONCE(per_cpu(mg_cores, cpu).stats.throttled_periods));
	cpus_read_unlock();
	return 0;
}

static bool core_active(const struct mg_core *core)
{
	return core->regulated && core->policy.active;
}

static bool core_throttled(const struct mg_core *core)
{
	return core->regulated && core->policy.throttled;
}

static bool core_regulated(const struct mg_core *core)
{
	return core->regulated;
}

static bool core_rt(const struct mg_core *core)
{
	return mw_load(&core->policy.rt);
}

/* The cores for which @is returns true, as a list; "none" if there are none. */
static void show_cores(struct seq_file *m, const char *name,
		       bool (*is)(const struct mg_core *core))
{
	cpumask_var_t mask;
	int cpu;

	if (!zalloc_cpumask_var(&mask, GFP_KERNEL))
		return;
	for_each_possible_cpu(cpu)
		if (is(&per_cpu(mg_cores, cpu)))
			cpumask_set_cpu(cpu, mask);
	if (cpumask_empty(mask))
		seq_printf(m, "%s: none\n", name);
	else
		seq_printf(m, "%s: %*pbl\n", name, cpumask_pr_args(mask));
	free_cpumask_var(mask);
}

/* Write events are the same if their codes are the same. */
static bool same_event(const struct mg_event *one, const struct mg_event *other,
		       enum mw_resource resource)
{
	if (memcmp(mg_event_code(one, resource), mg_event_code(other, resource),
		   sizeof(struct mg_code)))
		return false;
	return resource == MW_WRITE ||
	       (one->name == other->name &&
		!memcmp(&one->read_too, &other->read_too, sizeof(struct mg_code)));
}

static bool has_event(const struct mg_event *event, enum mw_resource resource)
{
	return event->name && (resource == MW_READ || event->write.config);
}

static void show_code(struct seq_file *m, const struct mg_code *code)
{
	seq_printf(m, "%#llx", code->config);
	if (code->config1)
		seq_printf(m, ":config1=%#llx", code->config1);
	if (code->config2)
		seq_printf(m, ":config2=%#llx", code->config2);
}

/* In the format of g_read_counter_id= or g_write_counter_id=. */
static void show_codes(struct seq_file *m, const struct mg_event *event,
		       enum mw_resource resource)
{
	show_code(m, mg_event_code(event, resource));
	if (resource == MW_WRITE || !event->read_too.config)
		return;
	seq_putc(m, '+');
	show_code(m, &event->read_too);
}

/* In the format of g_hw_type=, for CPUs @first to @last. */
static void show_event_of(struct seq_file *m, const struct mg_event *event,
			  enum mw_resource resource, int first, int last)
{
	const char *name = resource == MW_WRITE ? event->write_name : event->name;

	if (!name || !strcmp(name, "raw"))
		show_codes(m, event, resource);
	else
		seq_puts(m, name);
	seq_printf(m, "@%d", first);
	if (last > first)
		seq_printf(m, "-%d", last);
}

/* Name and code if all cores have the same event, else EVENT@FIRST-LAST,... */
static void show_event(struct seq_file *m, enum mw_resource resource)
{
	const struct mg_event *first = NULL, *event = NULL;
	bool differ = false;
	int cpu, begin = 0, end = 0;

	for_each_cpu(cpu, &mg_guard.cpus) {
		const struct mg_event *other = &per_cpu(mg_cores, cpu).event;

		if (!has_event(other, resource))
			continue;
		if (!first)
			first = other;
		differ |= !same_event(first, other, resource);
	}
	if (!first) {
		seq_puts(m, "none\n");
		return;
	}
	if (!differ) {
		seq_printf(m, "%s ", first->name);
		if (resource == MW_WRITE && first->write_name)
			seq_puts(m, first->write_name);
		else
			show_codes(m, first, resource);
		seq_putc(m, '\n');
		return;
	}
	for_each_cpu(cpu, &mg_guard.cpus) {
		const struct mg_event *other = &per_cpu(mg_cores, cpu).event;

		if (!has_event(other, resource))
			continue;
		if (event && cpu == end + 1 && same_event(event, other, resource)) {
			end = cpu;
			continue;
		}
		if (event) {
			show_event_of(m, event, resource, begin, end);
			seq_putc(m, ',');
		}
		event = other;
		begin = cpu;
		end = cpu;
	}
	show_event_of(m, event, resource, begin, end);
	seq_putc(m, '\n');
}

/* In a separate budget, or in a combined one. */
static bool counts_write_events(void)
{
	int cpu;

	for_each_cpu(cpu, &mg_guard.cpus)
		if (mg_guard.combined && per_cpu(mg_cores, cpu).event.write.config)
			return true;
	return mg_counts_writes();
}

static int control_show(struct seq_file *m, void *unused)
{
	cpus_read_lock();
	mutex_lock(&mg_guard.lock);
	seq_printf(m, "maxbw: %llu\n", mg_guard.maxbw);
	seq_printf(m, "period_us: %llu\n", div_u64(mg_guard.clock.period_ns, NSEC_PER_USEC));
	seq_printf(m, "reclaim: %llu\n", mw_load(&mg_guard.policy.reclaim));
	seq_printf(m, "exclusive: %llu\n", mw_load(&mg_guard.policy.best_effort));
	seq_printf(m, "qmin: %llu\n", mw_load(&mg_guard.policy.qmin));
	seq_puts(m, "event: ");
	show_event(m, MW_READ);
	seq_puts(m, "write_event: ");
	if (counts_write_events())
		show_event(m, MW_WRITE);
	else
		seq_puts(m, "none\n");
	seq_printf(m, "combined: %d\n", mg_guard.combined);
	seq_printf(m, "bytes_per_event: %u\n", mg_guard.bytes);
	seq_printf(m, "user_only: %d\n", mg_guard.user_only);
	seq_printf(m, "idle: %s\n", mg_guard.poll ? "poll" : "wait");
	seq_printf(m, "guaranteed_mb: %llu\n", mg_guaranteed_mb(MW_READ));
	seq_printf(m, "least_events: %llu\n", mg_least_events(MW_READ));
	seq_printf(m, "cpus: %*pbl\n", cpumask_pr_args(&mg_guard.cpus));
	show_cores(m, "rt", core_rt);
	show_cores(m, "online", core_regulated);
	show_cores(m, "active", core_active);
	show_cores(m, "throttled", core_throttled);
	mutex_unlock(&mg_guard.lock);
	cpus_read_unlock();
	return 0;
}

/* In percent of all budgets that a core has had; what it used without one does not count. */
static u64 overall_use(const struct mg_core *core)
{
	const struct mw_account *account = &core->policy.account[MW_READ];
	u64 assigned = READ_ONCE(account->total_assigned);
	u64 unlimited = READ_ONCE(core->counter[MW_READ].unlimited);
	u64 used = READ_ONCE(account->total_used);

	/* The core may have cleared its statistics between these reads. */
	if (!assigned || used < unlimited)
		return 0;
	return div64_u64((used - unlimited) * 100, assigned);
}

/*
 * Averages over about 2, 16 and 256 periods, then since the last reset. Periods that were only
 * noted (steady.c) enter the averages with their mean.
 */
static int usage_show(struct seq_file *m, void *unused)
{
	int cpu, i;

	cpus_read_lock();
	mg_freshen();
	for (i = 0; i < MG_AVERAGES; i++) {
		for_each_mg_cpu(cpu) {
			struct mg_core *core = &per_cpu(mg_cores, cpu);
			u64 budget = READ_ONCE(core->policy.account[MW_READ].budget);
			u64 events = READ_ONCE(core->counter[MW_READ].average[i]);

			seq_printf(m, "%llu ",
				   div64_u64(events * 100 >> MG_AVERAGE_SHIFT, budget));
		}
		seq_putc(m, '\n');
	}
	seq_puts(m, "<overall>----\n");
	for_each_mg_cpu(cpu)
		seq_printf(m, "%llu ", overall_use(&per_cpu(mg_cores, cpu)));
	seq_putc(m, '\n');
	cpus_read_unlock();
	return 0;
}

static void show_account(struct seq_file *m, struct mg_core *core, enum mw_resource r)
{
	const struct mw_account *account = &core->policy.account[r];
	const struct mg_counter *counter = &core->counter[r];
	u64 budget = core->wanted[r];
	int i;

	if (budget == MW_UNLIMITED)
		seq_puts(m, "{\"budget\":null");
	else
		seq_printf(m, "{\"budget\":%llu", budget);
	seq_printf(m, ",\"used\":%llu,\"assigned\":%llu,\"donated\":%llu,\"reclaimed\":%llu,\"reclaim_errors\":%llu,",
		   account->total_used, account->total_assigned,
		   account->total_donated, account->total_reclaimed,
		   account->reclaim_errors);
	seq_printf(m, "\"used_max\":%llu,\"over_periods\":%llu,\"last_second\":{\"used\":%llu,\"assigned\":%llu,\"used_max\":%llu},\"stop_events\":%llu,\"owed\":%llu,\"overshoot_max\":%llu,\"overshoot_hist\":[",
		   max(counter->used_max, counter->second_max),
		   counter->over_periods, core->last_second.used[r],
		   core->last_second.assigned[r], core->last_second.used_max[r],
		   mw_stop_events(&core->policy, r),
		   core->policy.account[r].owed, counter->overshoot_max);
	for (i = 0; i < MG_BUCKETS; i++)
		seq_printf(m, i ? ",%llu" : "%llu", counter->overshoot[i]);
	seq_puts(m, "]}");
}

static void show_core(struct seq_file *m, struct mg_core *core)
{
	const struct mg_stats *stats = &core->stats;

	seq_printf(m, "{\"cpu\":%u,\"online\":%s,\"rt\":%s,", core->cpu,
		   core->regulated ? "true" : "false",
		   core_rt(core) ? "true" : "false");
	seq_printf(m, "\"periods\":%llu,\"missed_periods\":%llu,\"late_ns_max\":%llu,\"late_ns_sum\":%llu,\"overflows\":%llu,",
		   stats->periods, stats->missed_periods, stats->late_max,
		   stats->late_sum, stats->overflows);
	seq_printf(m, "\"elapsed_ns\":%llu,", stats->elapsed_ns);
	seq_printf(m, "\"throttled_periods\":%llu,\"throttled_ns\":%llu,\"best_effort_periods\":%llu,\"best_effort_ns\":%llu,",
		   stats->throttled_periods, stats->throttled_ns,
		   stats->best_effort_periods, stats->best_effort_ns);
	seq_printf(m, "\"throttle_latency_ns_max\":%llu,\"release_latency_ns_max\":%llu,\"unregulated_periods\":%llu,",
		   stats->throttle_latency_max, stats->release_latency_max,
		   stats->unregulated_periods);
	seq_printf(m, "\"last_second\":{\"ns\":%llu,\"periods\":%llu,\"throttled_ns\":%llu},\"read\":",
		   core->last_second.since, core->last_second.periods,
		   core->last_second.throttled_ns);
	show_account(m, core, MW_READ);
	seq_puts(m, ",\"write\":");
	if (mg_counts_writes())
		show_account(m, core, MW_WRITE);
	else
		seq_puts(m, "null");
	seq_puts(m, "}\n");
}

static int stats_show(struct seq_file *m, void *unused)
{
	struct mg_core *copy = kmalloc(sizeof(*copy), GFP_KERNEL);
	int cpu;

	if (!copy)
		return -ENOMEM;
	cpus_read_lock();
	for_each_cpu(cpu, &mg_guard.cpus) {
		mg_core_copy(cpu, copy);
		show_core(m, copy);
	}
	cpus_read_unlock();
	kfree(copy);
	return 0;
}

/* ---- the files ---- */

/* The misc device's open leaves the device in private_data, which seq_file needs for itself. */
#define MG_FILE(name, show, set) \
static int name##_open(struct inode *inode, struct file *file) \
{ \
	file->private_data = NULL; \
	return single_open(file, show, NULL); \
} \
static ssize_t name##_write(struct file *file, const char __user *from, \
			    size_t size, loff_t *at) \
{ \
	return write_setting(file, from, size, set); \
} \
static const struct file_operations name##_fops = { \
	.owner = THIS_MODULE, \
	.open = name##_open, \
	.read = seq_read, \
	.write = name##_write, \
	.llseek = seq_lseek, \
	.release = single_release, \
}

static int set_nothing(const char *text, const char **why)
{
	*why = "this file is read-only";
	return -EINVAL;
}

MG_FILE(limit, limit_show, set_read_limits);
MG_FILE(write_limit, write_limit_show, set_write_limits);
MG_FILE(share, share_show, mg_set_shares);
MG_FILE(failcnt, failcnt_show, set_failcnt);
MG_FILE(control, control_show, mg_set_control);
MG_FILE(usage, usage_show, set_nothing);
MG_FILE(stats, stats_show, set_nothing);

#define MG_DEVICE(file, file_mode, operations) \
{ \
	.minor = MISC_DYNAMIC_MINOR, \
	.name = "memguard/" file, \
	.mode = (file_mode), \
	.fops = &(operations), \
}

/* For root only; a udev rule may grant others access to single devices. */
static struct miscdevice devices[] = {
	MG_DEVICE("limit", 0600, limit_fops),
	MG_DEVICE("read_limit", 0600, limit_fops),
	MG_DEVICE("write_limit", 0600, write_limit_fops),
	MG_DEVICE("share", 0600, share_fops),
	MG_DEVICE("failcnt", 0600, failcnt_fops),
	MG_DEVICE("control", 0600, control_fops),
	MG_DEVICE("usage", 0400, usage_fops),
	MG_DEVICE("stats", 0400, stats_fops),
};

static const char *file_name(const struct miscdevice *device)
{
	return strrchr(device->name, '/') + 1;
}

/* Errors are ignored: the devices exist in any case. */
static void create_view(void)
{
	int i;

	view = debugfs_create_dir("memguard", NULL);
	for (i = 0; i < ARRAY_SIZE(devices); i++)
		debugfs_create_file(file_name(&devices[i]), devices[i].mode, view, NULL,
				    devices[i].fops);
}

static void remove_devices(int count)
{
	while (count--)
		misc_deregister(&devices[count]);
}

/**
 * mg_files_create() - create the devices, and their view in debugfs
 *
 * Return: 0, or a negative errno with everything undone.
 */
int mg_files_create(void)
{
	int i, err;

	for (i = 0; i < ARRAY_SIZE(devices); i++) {
		err = misc_register(&devices[i]);
		if (err) {
			remove_devices(i);
			return err;
		}
	}
	create_view();
	return 0;
}

/** mg_files_remove() - remove the files; open ones hold the module, so none is open here */
void mg_files_remove(void)
{
	debugfs_remove(view);
	remove_devices(ARRAY_SIZE(devices));
}
