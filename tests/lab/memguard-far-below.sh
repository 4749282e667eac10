#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock, on which a nanosecond is an instruction
# cpus: 1
# A core far below its budget has no period timer. That costs almost nothing; still no period
# exceeds its budget, and none falls short by more than 1/64. A core near its budget has a
# timer, which is also cheap if cores do not share.
# shellcheck disable=SC2034 # for memguard.sh
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

here=$(dirname "$0")

# spin: the time of a fixed number of instructions, in ns: the median of five, since the
# kernel's own work comes in blocks of 0.6 ms, which some runs include and others don't.
spin() {
	for _ in 1 2 3 4 5; do "$here/paced" 0; done | sed 's/ ns//' | sort -n | sed -n 3p
}

# paced EVENTS EVERY_US: figures of such a load over two seconds.
paced() {
	"$here/paced" "$1" "$2" 3 &
	pids=$!
	figures_over 2000
	stop_traffic
	STATS=/tmp/stats
}

# timers: interrupts of the core's timer in 200 ms, with a load that has almost no traffic.
timers() {
	"$here/paced" 1 200000 1 &
	pids=$!
	usleep 100000
	before=$(timers_of_0)
	usleep 200000
	echo $(($(timers_of_0) - before))
	stop_traffic
}

# cost: instructions per period; on the counted clock each takes a nanosecond.
cost() {
	guarded=$(spin)
	echo $(((guarded - free) * 100000 / free))
}

load period_us=100
spin >/dev/null
free=$(spin)
set_to limit "events 1000000"
for mode in "exclusive 0" "exclusive 2" "exclusive 5" "reclaim 1"; do
	set_to control "$mode"
	cost=$(cost)
	echo "# $mode: $cost instructions a period"
	check "a core without traffic has little overhead: $mode" "is $cost -lt 130" 0 yes
	set_to control "exclusive 0"
done
set_to control "reclaim 0"
set_to control "period_us 1000"

set_to limit "events 200"
paced 190 10000
echo "# $(stat 0 throttled_periods) throttled, $(stat 0 used_max read) at most, $(stat 0 periods) periods"
check "a burst within its budget is not held" "stat 0 throttled_periods" 0 '^0$'
check "  and every period is counted" "is $(stat 0 periods) -ge 1990" 0 yes
check "  with every event" "within $(stat 0 used read) 38000 2" 0 yes
paced 1000 50000
echo "# $(stat 0 throttled_periods) throttled, $(stat 0 used_max read) at most"
check "a burst beyond its budget is held" "is $(stat 0 throttled_periods) -ge 120" 0 yes
check "  with no period over its budget" "is $(stat 0 used_max read) -le 202" 0 yes
check "  by the regulator's own count, too" "stat 0 over_periods read" 0 '^0$'
check "  and no event is lost" "within $(stat 0 used read) 40000 2" 0 yes
paced 20 1000
echo "# $(stat 0 used_max read) at most, $(stat 0 used read) in $(stat 0 periods) periods"
check "a steady load has a period timer" "within $(per_period 0) 2000 2" 0 yes
check "a core with almost no traffic has none" "is $(timers) -lt 120" 0 yes
set_to limit "events 63"
check "it has one with a budget too small for chunks" "is $(timers) -ge 190" 0 yes
set_to limit "events 200"
set_to control "exclusive 5"
check "  and none if cores share" "is $(timers) -lt 120" 0 yes
set_to control "exclusive 0"
check "unloads" "unload" 0 ""

if ! has_pmu; then
	skip "a core near its budget pays for its timer and its counter" "this machine counts no instructions"
	finish
fi
# The instructions of a program that never sleeps count both as reads and as writes; no period
# uses 1/32768 of the write budget.
modprobe memguard period_us=100 user_only=1 g_hw_type=0x08 g_write_counter_id=0x08
set_to limit "events 167000"
set_to write_limit "events 8000000000"
cost=$(cost)
echo "# 60 % of a budget: $cost instructions a period"
check "a core near its budget has the overhead of its timer and counter" "is $cost -lt 1700" 0 yes
set_to write_limit "events 167000"
cost=$(cost)
echo "# 60 % of both budgets: $cost instructions a period"
check "a second near budget adds only its counter" "is $cost -lt 1900" 0 yes
set_to write_limit "events 8000000000"
paced 1 200000
echo "# $(stat 0 used_max read) at most, $(stat 0 used read) and $(stat 0 used write) in $(stat 0 periods) periods"
check "  and every period is counted" "within $(stat 0 periods) 20000 1" 0 yes
check "  with its assigned events" "within $(stat 0 assigned read) $(($(stat 0 periods) * 167000)) 0" 0 yes
check "  with the events of a counter that is not read in each" \
	"within $(stat 0 used write) $(stat 0 used read) 4" 0 yes
check "  no period is over its budget" "stat 0 over_periods read" 0 '^0$'
check "  nor held" "stat 0 throttled_periods" 0 '^0$'
# A period that begins while the figures are printed is in all of them or in none.
"$here/paced" 1 200000 3 &
pids=$!
set_to control reset
usleep 10000
for _ in $(seq 100); do
	cat "$G/stats" >/tmp/stats
	STATS=/tmp/stats
	[ "$(stat 0 assigned read)" = $(($(stat 0 periods) * 167000)) ] && echo one moment
done >/tmp/moments
stop_traffic
check "  all figures of a reading are of one moment" "grep -c 'one moment' /tmp/moments" 0 '^100$'
set_to limit "events 80000"
paced 1 200000
echo "# $(stat 0 throttled_periods) throttled, $(stat 0 used_max read) at most, $(stat 0 used read) in $(stat 0 periods) periods"
check "a smaller budget holds it" "within $(($(stat 0 used read) / 100)) $(($(stat 0 periods) * 800)) 1" 0 yes
check "  in each period" "is $(stat 0 used_max read) -le 80100" 0 yes
set_to limit "events 167000"
paced 1 200000
set_to control "exclusive 5"
paced 1 200000
check "sharing may begin at that time" "stat 0 over_periods read" 0 '^0$'
check "unloads" "unload" 0 ""

# The same as one budget over both: each instruction counts twice.
modprobe memguard period_us=100 user_only=1 g_hw_type=0x08 g_write_counter_id=0x08 combined=1
set_to limit "events 334000"
cost=$(cost)
echo "# 60 % of a budget over two events: $cost instructions a period"
check "a core near a budget over two events pays for both" "is $cost -lt 2400" 0 yes
set_to limit "events 160000"
paced 1 200000
echo "# $(stat 0 throttled_periods) throttled, $(stat 0 used_max read) at most, $(stat 0 overflows) interrupts in $(stat 0 periods) periods"
check "a smaller one holds it" "within $(($(stat 0 used read) / 100)) $(($(stat 0 periods) * 1600)) 1" 0 yes
check "  in each period" "is $(stat 0 used_max read) -le 160400" 0 yes
check "unloads" "unload" 0 ""
# Instructions alone, then page faults alone: one of the two takes all of the budget.
modprobe memguard user_only=1 g_hw_type=page-faults g_write_counter_id=0x08 combined=1 bytes_per_event=64
set_to limit "events 400000"
paced 1 200000
echo "# $(stat 0 throttled_periods) throttled, $(stat 0 used_max read) at most, $(stat 0 overflows) interrupts in $(stat 0 periods) periods"
check "the second event alone uses the budget" "within $(($(stat 0 used read) / 100)) $(($(stat 0 periods) * 4000)) 1" 0 yes
check "unloads" "unload" 0 ""
modprobe memguard user_only=1 g_hw_type=0x08 g_write_counter_id=page-faults combined=1 bytes_per_event=64
set_to limit "events 400000"
paced 1 200000
check "so does the first one" "within $(($(stat 0 used read) / 100)) $(($(stat 0 periods) * 4000)) 1" 0 yes
check "unloads" "unload" 0 ""

# The kernel accepts a rate only while it lowers the rate by itself.
perf_rate() {
	echo 25 >/proc/sys/kernel/perf_cpu_time_max_percent
	echo "$1" >/proc/sys/kernel/perf_event_max_sample_rate
	[ "$1" = 1 ] || echo 100 >/proc/sys/kernel/perf_cpu_time_max_percent
}

# With one interrupt allowed a tick, perf stops a counter at each. A core far below its budget goes
# on after its interrupts, each a chunk further, and a throttled one after each period.
perf_rate 1
modprobe memguard period_us=100 user_only=1 g_hw_type=0x08
for budget in 8000000 80000; do
	set_to limit "events $budget"
	paced 1 200000
	expected=$(($(stat 0 periods) * (budget > 100000 ? 100000 : budget)))
	echo "# budget $budget: $(stat 0 overflows) overflows, $(stat 0 used read) used in $(stat 0 periods) periods"
	check "perf's lowest rate stops no counter: budget $budget" \
		"within $(($(stat 0 used read) / 100)) $((expected / 100)) 5" 0 yes
done
check "unloads" "unload" 0 ""
perf_rate 1000000
finish
