// SPDX-License-Identifier: GPL-2.0-only
/*
 * How copies are traced: by the hooks of a patched kernel (kernel/patches), or by probes on
 * the out-of-line functions that the inlined ones call.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpumask.h>
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/timex.h>
#if defined(CONFIG_ARM64)
#include <asm/arch_timer.h>
#elif defined(CONFIG_X86)
#include <asm/tsc.h>
#endif

#include "ring.h"
#include "source.h"

static char *from = "";
module_param(from, charp, 0444);
MODULE_PARM_DESC(from, "where copies are seen: hooks (of a patched kernel) or probes (default: hooks where there are any)");

/**
 * struct source_kind - hooks or probes
 * @name: value of the parameter from=
 * @flags: COPYTRACE_MERGED or 0
 * @start: begins recording; 0 or an errno
 * @stop: ends recording; no copy is being recorded when it returns
 * @missed: copies of a function lost since the module was loaded
 */
struct source_kind {
	const char *name;
	u32 flags;
	int (*start)(void);
	void (*stop)(void);
	u64 (*missed)(enum copytrace_function function);
};

#ifdef CONFIG_USERCOPY_TRACE
#include <linux/usercopy_hooks.h>

/* Called for each copy: the trace's own cost is here. */
static notrace void record_hooked_copy(const struct usercopy_record *told)
{
	/* A copy of the argument, since the compiler must assume that the record aliases it. */
	const struct usercopy_record copy = *told;
	struct copytrace_ring *ring = this_cpu_ptr(&copytrace_rings[copy.function]);
	struct copytrace_slot slot;

	BUILD_BUG_ON((int)FROM_USER != USERCOPY_FROM_USER);
	BUILD_BUG_ON((int)UNDERSCORE_TO_USER != USERCOPY___TO_USER);
	if (!copytrace_ring_reserve(ring, &slot))
		return;
	slot.record->before = copy.before;
	slot.record->after = copy.after;
	slot.record->caller = copytrace_ring_caller(ring, copy.caller);
	slot.record->bytes = copy.bytes;
	slot.record->left = copy.left;
	slot.record->by_engine = copy.by_engine;
	slot.record->cpu = copy.cpu;
	copytrace_ring_commit(ring, &slot);
}

static int hooks_start(void)
{
	return usercopy_trace_start(record_hooked_copy);
}

static u64 hooks_missed(enum copytrace_function function)
{
	return 0;
}
#endif

#ifdef CONFIG_KRETPROBES
/* Kept from a probed call to its return. */
struct probed_call {
	u64 before;
	unsigned long bytes;
	unsigned int cpu;
};

static int probe_entry(struct kretprobe_instance *instance, struct pt_regs *registers)
{
	struct probed_call *call = (void *)instance->data;

	/* All probed functions take destination, source and size. */
	call->bytes = regs_get_kernel_argument(registers, 2);
	call->cpu = raw_smp_processor_id();
	call->before = get_cycles();
	return 0;
}

NOKPROBE_SYMBOL(probe_entry);

static void record_probed_copy(struct kretprobe_instance *instance, struct pt_regs *registers,
			       enum copytrace_function function)
{
	const struct probed_call *call = (void *)instance->data;
	u64 after = get_cycles();
	struct copytrace_slot slot;
	struct copytrace_ring *ring;

	preempt_disable_notrace();
	ring = this_cpu_ptr(&copytrace_rings[function]);
	if (copytrace_ring_reserve(ring, &slot)) {
		slot.record->before = call->before;
		slot.record->after = after;
		slot.record->caller = copytrace_ring_caller(ring, get_kretprobe_retaddr(instance));
		slot.record->bytes = call->bytes;
		slot.record->left = regs_return_value(registers);
		slot.record->by_engine = 0;
		slot.record->cpu = call->cpu;
		copytrace_ring_commit(ring, &slot);
	}
	preempt_enable_notrace();
}

NOKPROBE_SYMBOL(record_probed_copy);

static int from_returns(struct kretprobe_instance *instance, struct pt_regs *registers)
{
	record_probed_copy(instance, registers, FROM_USER);
	return 0;
}

NOKPROBE_SYMBOL(from_returns);

static int to_returns(struct kretprobe_instance *instance, struct pt_regs *registers)
{
	record_probed_copy(instance, registers, TO_USER);
	return 0;
}

NOKPROBE_SYMBOL(to_returns);

static struct kretprobe probes[2];
/* Calls that each probe missed in earlier registrations: a probe counts those since the last. */
static u64 missed_earlier[2];

static u64 missed_now(int i)
{
	return probes[i].nmissed + probes[i].kp.nmissed;
}

/* The four functions are inlined; arm64's share the routines that they call. */
#ifdef CONFIG_ARM64
#define PROBED_FROM "__arch_copy_from_user"
#define PROBED_TO "__arch_copy_to_user"
#define PROBED_FLAGS COPYTRACE_MERGED
#else
#define PROBED_FROM "_copy_from_user"
#define PROBED_TO "_copy_to_user"
#define PROBED_FLAGS 0
#endif

/* A copy may sleep while copies of other tasks begin. */
#define FOLLOWED_PER_CPU 64

static int probes_start(void)
{
	static const char *const names[] = { PROBED_FROM, PROBED_TO };
	static const kretprobe_handler_t ended[] = { from_returns, to_returns };
	int i, err;

	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		/* A registration leaves state that the next one must not see. */
		missed_earlier[i] += missed_now(i);
		memset(&probes[i], 0, sizeof(probes[i]));
		probes[i].kp.symbol_name = names[i];
		probes[i].entry_handler = probe_entry;
		probes[i].handler = ended[i];
		probes[i].data_size = sizeof(struct probed_call);
		probes[i].maxactive = FOLLOWED_PER_CPU * num_possible_cpus();
		err = register_kretprobe(&probes[i]);
		if (err) {
			pr_err("no probe on %s: error %d\n", names[i], err);
			if (i)
				unregister_kretprobe(&probes[0]);
			return err;
		}
	}
	return 0;
}

static void probes_stop(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(probes); i++)
		unregister_kretprobe(&probes[i]);
	/* Calls under way still return to their handlers, which run with preemption off. */
	synchronize_rcu();
}

static u64 probes_missed(enum copytrace_function function)
{
	switch (function) {
	case FROM_USER:
		return missed_earlier[0] + missed_now(0);
	case TO_USER:
		return missed_earlier[1] + missed_now(1);
	default:
		/* No probe records the __ forms as such. */
		return 0;
	}
}
#endif

static const struct source_kind kinds[] = {
#ifdef CONFIG_USERCOPY_TRACE
	[COPYTRACE_HOOKS] = {
		.name = "hooks",
		.start = hooks_start,
		.stop = usercopy_trace_stop,
		.missed = hooks_missed,
	},
#endif
#ifdef CONFIG_KRETPROBES
	[COPYTRACE_PROBES] = {
		.name = "probes",
		.flags = PROBED_FLAGS,
		.start = probes_start,
		.stop = probes_stop,
		.missed = probes_missed,
	},
#endif
};

static const struct source_kind *chosen;
static unsigned int started;

int copytrace_source_choose(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(kinds); i++) {
		if (!kinds[i].name || (*from && strcmp(from, kinds[i].name)))
			continue;
		chosen = &kinds[i];
		return 0;
	}
	if (*from && strcmp(from, "hooks") && strcmp(from, "probes"))
		pr_err("from=%s: give hooks or probes\n", from);
	else
		pr_err("from=%s: this kernel has none%s\n", from,
		       *from ? "" : ", neither CONFIG_USERCOPY_TRACE nor CONFIG_KRETPROBES");
	return *from ? -EINVAL : -EOPNOTSUPP;
}

enum copytrace_source copytrace_source_kind(void)
{
	return chosen - kinds;
}

u32 copytrace_source_flags(void)
{
	return chosen->flags;
}

/* The frequency of get_cycles(), which the kernel exports under no common name. */
u64 copytrace_source_ticks_hz(void)
{
#if defined(CONFIG_ARM64)
	return arch_timer_get_cntfrq();
#elif defined(CONFIG_X86)
	return (u64)tsc_khz * 1000;
#else
#error "copytrace: the frequency of get_cycles() on this architecture is not known"
#endif
}

int copytrace_source_start(void)
{
	int err;

	lockdep_assert_held(&copytrace_rings_lock);
	if (!started) {
		err = chosen->start();
		if (err)
			return err;
	}
	started++;
	return 0;
}

void copytrace_source_stop(void)
{
	lockdep_assert_held(&copytrace_rings_lock);
	if (!--started)
		chosen->stop();
}

u64 copytrace_source_missed(enum copytrace_function function)
{
	lockdep_assert_held(&copytrace_rings_lock);
	return chosen->missed(function);
}
