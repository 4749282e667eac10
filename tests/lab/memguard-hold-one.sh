#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on any kernel and platform
# cpus: 1
# A budget holds on a machine with one core, for ordinary tasks and for those of the deadline
# class, whose deadlines come first; and a budget that the regulator itself would use up is
# refused, with the smallest allowed one. HOLD is the duration in seconds.
# shellcheck disable=SC2034 # for memguard.sh
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

here=$(dirname "$0")

# held EVENTS CLASS: a hog of that class, for HOLD seconds.
held() {
	set_to limit "events $1"
	"$here/hog" "$2" &
	pids=$!
	figures_over "${HOLD:-5}000"
	stop_traffic
	STATS=/tmp/stats
	check "$2: $1 events a period" "within $(per_period 0) $1""00 1" 0 yes
	check "  in the last second, too" \
		"within $(last_second 0 used read) $(($1 * $(last_second 0 periods))) 1" 0 yes
	check "  at most $1 in a period, and 2 more" "is $(stat 0 used_max read) -le $(($1 + 2))" 0 yes
}

echo "# $(uname -rv)"
leave_real_time_tasks_some
load
check "a core without a limit has no timer" "cat /proc/timer_list" 0 '!period_elapsed'
# On some kernels (7.3 with PREEMPT_RT) a load alone makes no more than 200 faults a millisecond. On a platform's memory it
# makes a sixth less when each period begins with cold caches.
set_to limit "events 100000"
"$here/hog" other &
pids=$!
figures_over 1000
stop_traffic
STATS=/tmp/stats
alone=$(($(per_period 0) / 100))
echo "# the load alone has $alone events a period"
STATS=
for events in 5 50 "$(at_most $((alone * 3 / 4)) 200)"; do
	held "$events" other
done

# totals: keeps the figures since the last reset: events in a second, and the throttled percent of the time.
totals() {
	STATS=
	cat "$G/stats" >/tmp/stats
	STATS=/tmp/stats
	rate=$(($(stat 0 used read) * 1000 / ($(stat 0 elapsed_ns) / 1000000)))
	throttled=$(($(stat 0 throttled_ns) * 100 / $(stat 0 elapsed_ns)))
	echo "# $rate events/s, throttled $throttled %, $(stat 0 used_max read) at most in $(stat 0 periods) periods"
}

set_to limit "mb 40"
"$here/hog" other &
pids=$!
figures_over 1000
totals
at_first=$throttled
check "40 MB/s: 10 events a period of 1 ms" "within $rate 10000 3" 0 yes
set_to control "period_us 10000"
usleep 1000000
totals
check "  after a second in periods of 10 ms with 102 events, the mean is that of both seconds" \
	"within $rate 10100 3" 0 yes
check "  throttled as before" "within $throttled $at_first 5" 0 yes
check "  the most events of a period are those of a longer one" \
	"within $(stat 0 used_max read) 102 10" 0 yes
set_to control "period_us 1000"
usleep 1000000
totals
check "  after another second in shorter ones, that of all three" "within $rate 10070 3" 0 yes
check "  throttled as before" "within $throttled $at_first 5" 0 yes
check "  the most events of a period are those of a shorter one" \
	"is $(stat 0 used_max read) -le 12" 0 yes
check "  guard show has the mean and the throttled part" "memwarden guard show" 0 \
	"CPU0 +39\.1 +10 +(38|39|40)\.[0-9] .*\) +[0-9]{2}\.[0-9] % +[0-9]{2}\.[0-9] % "
stop_traffic

# A deadline task that never sleeps takes the whole budget. Without a fair server this shell and RCU
# get none of it; with one, PREEMPT_RT's threads for timers and RCU get none, since they are not
# ordinary tasks.
if [ -d /sys/kernel/debug/sched/fair_server ] && ! uname -v | grep -q PREEMPT_RT; then
	held 20 deadline
fi
set_to limit "events 20"
"$here/hog" resting &
pids=$!
figures_over "${HOLD:-5}000"
stop_traffic
STATS=/tmp/stats
throttled=$(stat 0 throttled_periods)
echo "# resting: $throttled of $(stat 0 periods) periods throttled, $(stat 0 used read) events"
check "a deadline task that sleeps for half of the time is held meanwhile" \
	"is $((throttled * 100)) -ge $(($(stat 0 periods) * 40))" 0 yes
check "  has its 20 events in each of these periods" \
	"within $(stat 0 used read) $((throttled * 20)) 2" 0 yes
check "  and at most 2 more in one" "is $(stat 0 used_max read) -le 22" 0 yes
STATS=
check "unloads" "unload" 0 ""

# Where the scheduler has no class for it, a budget does not hold, and the log and guard show say so.
load fifo=1
check "with SCHED_FIFO only, the log says what that means" "dmesg | tail -n 3" 0 "no scheduling class can hold a core"
set_to limit "events 5"
"$here/hog" other &
pids=$!
figures_over "${HOLD:-5}000"
stop_traffic
STATS=/tmp/stats
echo "# with SCHED_FIFO only: $(per_period 0) hundredths of a budget of 5 a period"
check "  and the budget leaks" "is $(per_period 0) -gt 600" 0 yes
STATS=
check "  as guard show says, too" "memwarden guard show" 0 "SCHED_FIFO only"
check "  unloads" "unload" 0 ""

if ! has_pmu; then
	skip "the end of a throttle takes cycles" "this machine counts no cycles"
	finish
fi
# The regulator's interrupts, wake-ups and switches take some thousand cycles.
modprobe memguard g_hw_type=cycles
least=$(setting least_events)
check "the end of a throttle takes cycles" "is $least -gt 1000" 0 yes
check "a budget below that is refused" "set_to limit 'events $((least / 2))'" 1 "Invalid argument"
check "  with the figure" "dmesg | tail -n 1" 0 "give $least or more"
check "the smallest allowed budget is accepted" "set_to limit 'events $least'" 0 ""
# Its tasks continue, however slowly, and unloading waits for grace periods.
check "  and tasks continue" "sh -c 'echo on'" 0 "on"
check "  and so does RCU: the module unloads" "unload" 0 ""
finish
