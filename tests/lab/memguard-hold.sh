#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on any kernel and platform
# A budget holds for seconds, not only for 130 ms: for longer than the scheduler keeps a class
# of tasks from the core (fair server and real-time throttling: 50 ms in each second). Four
# cores, with the same small budget and with different ones, then the classes above ordinary
# tasks. HOLD is the duration in seconds.
# shellcheck disable=SC2034 # for memguard.sh
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

here=$(dirname "$0")

# hog CPU CLASS: fresh pages, in the background.
hog() {
	"$here/hog" "$2" "$1" &
	pids="$pids $!"
}

# held CPU EVENTS WHAT: within 1 % of the budget over the whole and in the last second.
held() {
	check "$3: core $1 has its $2 events a period" "within $(per_period "$1") $2""00 1" 0 yes
	check "  in the last second, too" \
		"within $(last_second "$1" used read) $(($2 * $(last_second "$1" periods))) 1" 0 yes
	check "  and few periods above it" \
		"is $(($(stat "$1" over_periods read) * 100)) -le $(stat "$1" periods)" 0 yes
}

echo "# $(uname -rv)"
leave_real_time_tasks_some
load
set_to limit "events 5 5 5 5"
for c in 0 1 2 3; do
	hog $c other
done
figures_over "${HOLD:-5}000"
# Interrupts reach a held core: SysRq shows its throttle thread. On 6.1 the request waits for a task of
# each core, and shows that task, without a name.
echo l >/proc/sysrq-trigger
usleep 100000
check "SysRq reaches held cores" \
	"is $(dmesg | grep -c -e 'Comm: memguard/' -e 'sysrq: CPU[0-9]') -ge 3" 0 yes
stop_traffic
STATS=/tmp/stats
for c in 0 1 2 3; do
	held $c 5 "ordinary tasks"
done
sed 's/^/# /' /tmp/stats | cut -c1-800

# On some kernels (7.3 with PREEMPT_RT) a load alone makes no more than 200 faults a millisecond. On a platform's memory it
# makes a sixth less when each period begins with cold caches.
set_to limit "events 5 50 100000 5"
for c in 0 1 2 3; do
	hog $c other
done
figures_over 1000
alone=$(($(per_period 2) / 100))
echo "# core 2 without a budget has $alone events a period"
most=$(at_most $((alone * 3 / 4)) 200)
set_to limit "events 5 50 $most 5"
figures_over "${HOLD:-5}000"
stop_traffic
STATS=/tmp/stats
held 0 5 "different budgets"
held 1 50 "different budgets"
held 2 "$most" "different budgets"
held 3 5 "different budgets"
sed 's/^/# /' /tmp/stats | cut -c1-800

# On PREEMPT_RT core 1's RCU thread has a lower priority than this task, which starves it with
# and without memguard: RCU reports a stall after 21 s.
hold=${HOLD:-5}
case $(uname -v) in
*PREEMPT_RT*) hold=$(at_most 15 "$hold") ;;
esac
set_to limit "events max 20 20 max"
hog 1 fifo
hog 2 other
figures_over "${hold}000"
stop_traffic
STATS=/tmp/stats
held 1 20 "SCHED_FIFO 99"
held 2 20 "  beside it"
check "unloads" "unload" 0 ""
finish
