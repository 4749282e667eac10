// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where copies are seen: in the hooks of a kernel that has them (kernel/patches), or by
 * probes on the functions that copy for the inlined ones.
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
 * struct source_kind - one of them
 * @name: for the parameter
 * @flags: COPYTRACE_MERGED or 0
 * @start: begins; 0 or an errno
 * @stop: ends; nothing is recorded after it
 * @missed: since it was started last
 */
struct source_kind {
	const char *name;
	u32 flags;
	int (*start)(void);
	void (*stop)(void);
	u64 (*missed)(void);
};

#ifdef CONFIG_USERCOPY_TRACE
#include <linux/usercopy_hooks.h>

/* All of a traced copy's time goes here. */
static notrace void hooked(const struct usercopy_record *told)
{
	/* Read at once: for the compiler a record might be what was told. */
	const struct usercopy_record copy = *told;
	struct ring *ring = this_cpu_ptr(&rings[copy.function]);
	struct ring_slot slot;

	BUILD_BUG_ON((int)FROM_USER != USERCOPY_FROM_USER);
	BUILD_BUG_ON((int)UNDERSCORE_TO_USER != USERCOPY___TO_USER);
	if (!ring_reserve(ring, &slot))
		return;
	slot.record->before = copy.before;
	slot.record->after = copy.after;
	slot.record->caller = ring_caller(ring, copy.caller);
	slot.record->bytes = copy.bytes;
	slot.record->left = copy.left;
	slot.record->by_engine = copy.by_engine;
	slot.record->cpu = copy.cpu;
	ring_commit(ring, &slot);
}

static int hooks_start(void)
{
	return usercopy_trace_start(hooked);
}

static u64 none_missed(void)
{
	return 0;
}
#endif

#ifdef CONFIG_KRETPROBES
/* What is kept from a call to its return. */
struct begun {
	u64 before;
	unsigned long bytes;
	unsigned int cpu;
};

static int call_begins(struct kretprobe_instance *instance, struct pt_regs *registers)
{
	struct begun *begun = (void *)instance->data;

	/* All of them take the two places, and how much. */
	begun->bytes = regs_get_kernel_argument(registers, 2);
	begun->cpu = raw_smp_processor_id();
	begun->before = get_cycles();
	return 0;
}

NOKPROBE_SYMBOL(call_begins);

static void call_ended(struct kretprobe_instance *instance, struct pt_regs *registers,
		       enum function function)
{
	const struct begun *begun = (void *)instance->data;
	u64 after = get_cycles();
	struct ring_slot slot;
	struct ring *ring;

	preempt_disable_notrace();
	ring = this_cpu_ptr(&rings[function]);
	if (ring_reserve(ring, &slot)) {
		slot.record->before = begun->before;
		slot.record->after = after;
		slot.record->caller = ring_caller(ring, get_kretprobe_retaddr(instance));
		slot.record->bytes = begun->bytes;
		slot.record->left = regs_return_value(registers);
		slot.record->by_engine = 0;
		slot.record->cpu = begun->cpu;
		ring_commit(ring, &slot);
	}
	preempt_enable_notrace();
}

NOKPROBE_SYMBOL(call_ended);

static int from_ended(struct kretprobe_instance *instance, struct pt_regs *registers)
{
	call_ended(instance, registers, FROM_USER);
	return 0;
}

NOKPROBE_SYMBOL(from_ended);

static int to_ended(struct kretprobe_instance *instance, struct pt_regs *registers)
{
	call_ended(instance, registers, TO_USER);
	return 0;
}

NOKPROBE_SYMBOL(to_ended);

static struct kretprobe probes[2];

/* Where the four functions are inlined it is what they call, and that tells none apart. */
#ifdef CONFIG_ARM64
#define PROBED_FROM "__arch_copy_from_user"
#define PROBED_TO "__arch_copy_to_user"
#define PROBED_FLAGS COPYTRACE_MERGED
#else
#define PROBED_FROM "_copy_from_user"
#define PROBED_TO "_copy_to_user"
#define PROBED_FLAGS 0
#endif

/* A copy may sleep, and another task's begin. */
#define FOLLOWED_PER_CPU 64

static int probes_start(void)
{
	static const char *const names[] = { PROBED_FROM, PROBED_TO };
	static const kretprobe_handler_t ended[] = { from_ended, to_ended };
	int i, err;

	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		/* What a registration left in it would be taken for the next one's. */
		memset(&probes[i], 0, sizeof(probes[i]));
		probes[i].kp.symbol_name = names[i];
		probes[i].entry_handler = call_begins;
		probes[i].handler = ended[i];
		probes[i].data_size = sizeof(struct begun);
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
	/* A call that is under way returns to its handler yet, which preemption holds up. */
	synchronize_rcu();
}

/* A registration begins at 0, and what the last one left stays until the next. */
static u64 probes_missed(void)
{
	return probes[0].nmissed + probes[0].kp.nmissed + probes[1].nmissed + probes[1].kp.nmissed;
}
#endif

static const struct source_kind kinds[] = {
#ifdef CONFIG_USERCOPY_TRACE
	[COPYTRACE_HOOKS] = {
		.name = "hooks",
		.start = hooks_start,
		.stop = usercopy_trace_stop,
		.missed = none_missed,
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

int source_choose(void)
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

enum copytrace_source source(void)
{
	return chosen - kinds;
}

u32 source_flags(void)
{
	return chosen->flags;
}

/* Of get_cycles(), which has no such function. */
u64 source_ticks_hz(void)
{
#if defined(CONFIG_ARM64)
	return arch_timer_get_cntfrq();
#elif defined(CONFIG_X86)
	return (u64)tsc_khz * 1000;
#else
#error "copytrace: how often does what get_cycles() reads tick here?"
#endif
}

int source_start(void)
{
	int err;

	lockdep_assert_held(&rings_lock);
	if (!started) {
		err = chosen->start();
		if (err)
			return err;
	}
	started++;
	return 0;
}

void source_stop(void)
{
	lockdep_assert_held(&rings_lock);
	if (!--started)
		chosen->stop();
}

u64 source_missed(void)
{
	lockdep_assert_held(&rings_lock);
	return chosen->missed();
}
