#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on Debian's kernel
# What a core owes, judged by the budget that its period had.
# shellcheck disable=SC2034 # for memguard.sh
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

here=$(dirname "$0")
per_ns=/sys/module/memwarden_pmu/parameters/per_ns

# Core 1 is held after 50 page faults in each period. The other counter counts 1000 events per
# nanosecond: when the core is held, it is 20 % above its budget, as after an expensive stop. Then
# that budget becomes a thousandth. A debt would take about 200 periods to repay.
modprobe memwarden_pmu
modprobe memguard g_hw_type=page-faults g_write_counter_id=0xfa11
set_to limit "events max 50"
"$here/hog" steady 1 &
pids=$!
figures_over 500
ran=$((1000000 - $(stat 1 throttled_ns) / $(stat 1 periods)))
STATS=
budget=$((ran * 1000 / 12 * 10))
echo "# core 1 runs for $ran ns of a period; budget $budget"
most=0 held=0
for _ in $(seq 10); do
	echo 1000 >$per_ns
	set_to write_limit "events max $budget"
	usleep 20000
	before=$(stat 1 throttled_periods)
	usleep 5000
	held=$((held + $(stat 1 throttled_periods) - before))
	echo 0 >$per_ns
	set_to write_limit "events max $((budget / 1000))"
	owed=$(stat 1 owed write)
	echo "# owed after the change: $((owed / (budget / 1000))) budgets"
	[ "$owed" -le "$most" ] || most=$owed
done
stop_traffic
check "the core is held in each period" "is $held -ge 40" 0 yes
check "a budget is lowered, and an ordinary stop of the old one is not owed" "is $most = 0" 0 yes
check "unloads" "unload" 0 ""

# This counter never interrupts, as if the interrupt always came after the timer's. Core 1 uses two
# thirds of its budget, then twice the budget. Without sharing, its periods are only noted.
for reclaim in 0 1; do
	echo 1 >$per_ns
	modprobe memguard g_read_counter_id=0xfa11
	set_to control "reclaim $reclaim"
	set_to limit "events max 1500000"
	"$here/hog" steady 1 &
	pids=$!
	usleep 200000
	check "reclaim $reclaim: a core within its budget owes nothing" "stat 1 owed read" 0 "^0$"
	echo 3 >$per_ns
	usleep 5000
	owed=$(stat 1 owed read)
	echo "# it owes $owed events"
	check "  what exceeds a period whose interrupt has not come is owed" "is $owed -ge 700000" 0 yes
	set_to control "rt 1 1"
	echo 0 >$per_ns
	usleep 100000
	echo 3 >$per_ns
	usleep 5000
	check "  a real-time core owes nothing" "stat 1 owed read" 0 "^0$"
	stop_traffic
	check "unloads" "unload" 0 ""
done
rmmod memwarden_pmu
finish
