#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on Debian's kernel and any platform
# The policy's guarantees, as figures of the module on the counted clock: four
# cores, page faults, cores 1 and 2 with more demand than budget.
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

here=$(dirname "$0")

# stops CPU: throttles in the histogram of overshoot.
stops() {
	sed -n "/\"cpu\":$1,/s/.*\"read\":.*\"overshoot_hist\":\[\([0-9,]*\)\].*/\1/p" "${STATS:-$G/stats}" |
		tr , '\n' | awk '{ sum += $1 } END { print sum + 0 }'
}

# throttling_resources: whose overflows throttle a core, by the trace of 50 ms.
throttling_resources() {
	echo 1 >$T/events/memguard/overflow/enable
	usleep 50000
	echo 0 >$T/events/memguard/overflow/enable
	sed -n 's/.* overflow: .*\(resource=[0-9]*\) .*decision=throttle$/\1/p' $T/trace | sort -u | tr '\n' ' '
	echo
	: >$T/trace
}

load

# Without a budget the cores use more than one would allow: usage compares each budget with what was
# used under it.
traffic 1 0
traffic 2 0
usleep 500000
set_to limit "events 64 30 10 20"
usleep 100000
overall=$(tail -n 1 "$G/usage")
echo "# used of the budgets, in percent: $overall"
check "overall use counts only what had a budget" "is $(echo "$overall" | cut -d ' ' -f 2) -le 101" 0 yes
check "  and all of that" "is $(echo "$overall" | cut -d ' ' -f 3) -ge 99" 0 yes

set_to control "exclusive 0"
figures_over 200
check "none: each throttle is traced with its resource, reads" "throttling_resources" 0 "^resource=0 $"
check "none: core 1 uses its 30 events a period" "within $(per_period 1) 3000 1" 0 yes
check "none: core 2 uses its 10 events a period" "within $(per_period 2) 1000 1" 0 yes
check "none: never an event too many" \
	"echo $(stat 1 overshoot_max read) $(stat 2 overshoot_max read)" 0 "^0 0$"
check "none: no best effort" "echo $(stat 1 best_effort_periods) $(stat 2 best_effort_periods)" 0 "^0 0$"

set_to control "exclusive 5"
figures_over 200
ratio=$(($(stat 1 used read) * 1000 / $(stat 2 used read)))
check "proportional: 30 and 10 share three to one" "within $ratio 3000 2" 0 yes
check "proportional: more than one round a millisecond" "is $(stat 1 periods) -gt 300" 0 yes
check "proportional: never an event too many in a round" \
	"echo $(stat 1 overshoot_max read) $(stat 2 overshoot_max read)" 0 "^0 0$"

set_to control "exclusive 2"
figures_over 200
check "spare: core 1 gets more than its budget" "is $(per_period 1) -gt 3300" 0 yes
check "spare: core 2 gets more than its budget" "is $(per_period 2) -gt 1100" 0 yes
check "spare: best effort is counted" "is $(stat 2 best_effort_ns) -gt 0" 0 yes
check "spare: so is each stop before it" "is $(stops 2) -ge $(($(stat 2 best_effort_periods) / 2))" 0 yes

# Core 3 has 20 events per period and does not use them: with the idle cores'
# budgets in the pool, cores 1 and 2 exceed their own, but never the sum.
set_to control "exclusive 0"
set_to control "reclaim 1"
figures_over 200
sum=$(($(stat 0 used read) + $(stat 1 used read) + $(stat 2 used read) + $(stat 3 used read)))
most=$((124 * $(stat 1 periods)))
check "reclaim: core 2 gets more than its budget" "is $(per_period 2) -gt 1500" 0 yes
check "reclaim: together never more than the budgets" "is $sum -le $most" 0 yes
check "reclaim: nearly all of the budgets are used" "is $((sum * 100)) -ge $((most * 90))" 0 yes
check "reclaim: core 3's surplus is donated" "is $(stat 3 donated read) -gt 1000" 0 yes
check "reclaim: core 2 took it" "is $(stat 2 reclaimed read) -gt 1000" 0 yes

# Core 0 is busy and uses almost no budget: no period begins for it, and other cores can still
# use the rest of its budget.
taskset 1 "$here/paced" 1 200000 10 &
pids="$pids $!"
usleep 300000
# shellcheck disable=SC2034 # for memguard.sh
STATS=
before=$(timers_of_0)
figures_over 400
timers=$(($(timers_of_0) - before))
periods=$(stat 1 periods)
echo "# $timers timers of core 0 in 500 ms; cores 1 and 2 had $(per_period 1) and $(per_period 2) hundredths"
sum=$(($(stat 0 used read) + $(stat 1 used read) + $(stat 2 used read) + $(stat 3 used read)))
most=$((124 * periods))
check "reclaim: a busy core with almost no traffic has no timer" "is $timers -lt 300" 0 yes
check "reclaim: its unused budget is used by others" "is $((sum * 100)) -ge $((most * 90))" 0 yes
check "reclaim: together never more than the budgets" "is $sum -le $most" 0 yes
check "reclaim: and each of its periods is counted" "within $(stat 0 periods) $periods 3" 0 yes
check "reclaim: it donated in each" "is $(stat 0 donated read) -ge $((periods * 55))" 0 yes
set_to control "reclaim 0"

set_to control "rt 1 1"
figures_over 100
check "fault 4: a real-time core is never throttled" "stat 1 throttled_periods" 0 "^0$"
check "a real-time core is still counted" "is $(per_period 1) -gt 3300" 0 yes
check "its neighbour stays within its budget" "is $(per_period 2) -le 1000" 0 yes
set_to control "rt 1 0"

stop_traffic

# 98 MB/s are 25 events in 1000 us and 2 in 100 us. A core never has the 25 in a short
# period: period and budget change together, on all cores.
set_to limit "mb 98 98 98 98"
traffic 1 0
traffic 2 0
usleep 200000
echo 1 >$T/events/memguard/period/enable
i=0
while [ $i -lt 20 ]; do
	set_to control "period_us $((100 + i % 2 * 900))"
	usleep 5000
	i=$((i + 1))
done
echo 0 >$T/events/memguard/period/enable
stop_traffic
# Of cores 1 and 2, which are never idle, the periods that were shorter than 500 us, and those among them that had
# more than 2 events handed out. A long period that is cut short has, too; but the period
# before a cut one was whole, give or take how late its timer was, or had 2.
changes() {
	sed -n 's/.*\[\(00[12]\)\].* \([0-9]*\)\.\([0-9]*\): period: .*assigned_read=\([0-9]*\) .*/\1 \2\3 \4/p' $T/trace |
		awk '{
			length_us = $2 - last[$1]
			if (($1 in last) && length_us < 500) {
				if ($3 <= 2) short++
				else if (handed[$1] > 2 && lasted[$1] < 980) bad++
				else cut++
			}
			last[$1] = $2; handed[$1] = $3; lasted[$1] = length_us
		} END { print short + 0 " short, " bad + 0 " with too much, " cut + 0 " cut" }'
}
check "period and budget change together" "changes" 0 "^[0-9]{3,} short, 0 with too much"
: >$T/trace
check "unloads" "unload" 0 ""

# Of the two counters of a core, the writes' is the one that stops it.
load g_write_counter_id=minor-faults
set_to limit "events max 30"
set_to write_limit "events max 10"
traffic 1 0
usleep 100000
check "each throttle is traced with its resource, writes" "throttling_resources" 0 "^resource=1 $"
stop_traffic
check "unloads" "unload" 0 ""
finish
