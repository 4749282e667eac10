/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memguard

#if !defined(MEMGUARD_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define MEMGUARD_TRACE_H

#include <linux/tracepoint.h>

#include "memguard.h"

TRACE_DEFINE_ENUM(MW_CONTINUE);
TRACE_DEFINE_ENUM(MW_RUN);
TRACE_DEFINE_ENUM(MW_THROTTLE);
TRACE_DEFINE_ENUM(MW_RELEASE_ALL);
TRACE_DEFINE_ENUM(MW_NEW_PERIOD);

#define show_decision(action) \
	__print_symbolic(action, { MW_CONTINUE, "continue" }, \
			 { MW_RUN, "run" }, { MW_THROTTLE, "throttle" }, \
			 { MW_RELEASE_ALL, "release_all" }, \
			 { MW_NEW_PERIOD, "new_period" })

/*
 * A period has ended. The figures cover it and the preceding periods in which the core had no
 * timer: @used is the sum, @assigned is per period. The first event of a trace also includes what
 * an unread counter counted before.
 */
TRACE_EVENT(period,
	TP_PROTO(u64 epoch, u64 periods, u64 late_ns, const u64 *used,
		 const u64 *assigned, u64 throttled_ns),
	TP_ARGS(epoch, periods, late_ns, used, assigned, throttled_ns),
	TP_STRUCT__entry(
		__field(u64, epoch)
		__field(u64, periods)
		__field(u64, late_ns)
		__field(u64, used_read)
		__field(u64, assigned_read)
		__field(u64, used_write)
		__field(u64, assigned_write)
		__field(u64, throttled_ns)
	),
	TP_fast_assign(
		__entry->epoch = epoch;
		__entry->periods = periods;
		__entry->late_ns = late_ns;
		__entry->used_read = used[MW_READ];
		__entry->assigned_read = assigned[MW_READ];
		__entry->used_write = used[MW_WRITE];
		__entry->assigned_write = assigned[MW_WRITE];
		__entry->throttled_ns = throttled_ns;
	),
	TP_printk("epoch=%llu periods=%llu late_ns=%llu used_read=%llu assigned_read=%llu used_write=%llu assigned_write=%llu throttled_ns=%llu",
		  __entry->epoch, __entry->periods, __entry->late_ns,
		  __entry->used_read, __entry->assigned_read,
		  __entry->used_write, __entry->assigned_write,
		  __entry->throttled_ns)
);

/* The counter reached the number of events that it was armed for. */
TRACE_EVENT(overflow,
	TP_PROTO(u64 epoch, int resource, u64 used, u64 assigned, int decision),
	TP_ARGS(epoch, resource, used, assigned, decision),
	TP_STRUCT__entry(
		__field(u64, epoch)
		__field(u64, used)
		__field(u64, assigned)
		__field(int, resource)
		__field(int, decision)
	),
	TP_fast_assign(
		__entry->epoch = epoch;
		__entry->used = used;
		__entry->assigned = assigned;
		__entry->resource = resource;
		__entry->decision = decision;
	),
	TP_printk("epoch=%llu resource=%d used=%llu assigned=%llu decision=%s",
		  __entry->epoch, __entry->resource, __entry->used,
		  __entry->assigned, show_decision(__entry->decision))
);

/* The throttle thread runs; no other task runs on this core. */
TRACE_EVENT(throttle,
	TP_PROTO(u64 epoch, u64 used, u64 assigned, u64 overshoot, u64 latency_ns),
	TP_ARGS(epoch, used, assigned, overshoot, latency_ns),
	TP_STRUCT__entry(
		__field(u64, epoch)
		__field(u64, used)
		__field(u64, assigned)
		__field(u64, overshoot)
		__field(u64, latency_ns)
	),
	TP_fast_assign(
		__entry->epoch = epoch;
		__entry->used = used;
		__entry->assigned = assigned;
		__entry->overshoot = overshoot;
		__entry->latency_ns = latency_ns;
	),
	TP_printk("epoch=%llu used=%llu assigned=%llu overshoot=%llu latency_ns=%llu",
		  __entry->epoch, __entry->used, __entry->assigned,
		  __entry->overshoot, __entry->latency_ns)
);

/* The throttle thread has seen the release and gives the core back. */
TRACE_EVENT(unthrottle,
	TP_PROTO(u64 epoch, u64 throttled_ns, u64 latency_ns),
	TP_ARGS(epoch, throttled_ns, latency_ns),
	TP_STRUCT__entry(
		__field(u64, epoch)
		__field(u64, throttled_ns)
		__field(u64, latency_ns)
	),
	TP_fast_assign(
		__entry->epoch = epoch;
		__entry->throttled_ns = throttled_ns;
		__entry->latency_ns = latency_ns;
	),
	TP_printk("epoch=%llu throttled_ns=%llu latency_ns=%llu", __entry->epoch,
		  __entry->throttled_ns, __entry->latency_ns)
);

/* The core took donated events instead of being throttled. */
TRACE_EVENT(reclaim,
	TP_PROTO(u64 epoch, int resource, u64 amount, u64 pool_left),
	TP_ARGS(epoch, resource, amount, pool_left),
	TP_STRUCT__entry(
		__field(u64, epoch)
		__field(u64, amount)
		__field(u64, pool_left)
		__field(int, resource)
	),
	TP_fast_assign(
		__entry->epoch = epoch;
		__entry->amount = amount;
		__entry->pool_left = pool_left;
		__entry->resource = resource;
	),
	TP_printk("epoch=%llu resource=%d amount=%llu pool_left=%llu",
		  __entry->epoch, __entry->resource, __entry->amount,
		  __entry->pool_left)
);

/* All active cores have used their budgets; this core completed the condition. */
TRACE_EVENT(best_effort,
	TP_PROTO(u64 epoch, int mode),
	TP_ARGS(epoch, mode),
	TP_STRUCT__entry(
		__field(u64, epoch)
		__field(int, mode)
	),
	TP_fast_assign(
		__entry->epoch = epoch;
		__entry->mode = mode;
	),
	TP_printk("epoch=%llu mode=%d", __entry->epoch, __entry->mode)
);

#endif /* MEMGUARD_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
