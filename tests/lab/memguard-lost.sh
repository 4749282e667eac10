#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# cpus: 1
# kernels: stock own-debug
# If another user takes a core's counter, the core is not regulated: these periods are counted,
# the log has one line for each loss and each return, and regulation resumes when the counter is free again.
# shellcheck disable=SC2034 # for memguard.sh
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

here=$(dirname "$0")
taken=/sys/module/memwarden_pmu/parameters/taken

# growth MILLISECONDS FIGURE: by how much a figure grows in this time.
growth() {
	before=$($2)
	usleep "$1"000
	echo $(($($2) - before))
}
unregulated() { stat 0 unregulated_periods; }
losses() { dmesg | grep -c 'CPU0: event raw has stopped counting'; }

# If the host lets several periods pass at once, the timer expires once, and all but one are missed.
unregulated_or_missed() { echo $(($(unregulated) + $(stat 0 missed_periods))); }
timers_or_missed() { echo $(($(timers_of_0) + $(stat 0 missed_periods))); }

modprobe memwarden_pmu
modprobe memguard g_read_counter_id=0xfa11
# A budget of more nanoseconds than a period has: counted, and never used up. A period uses more
# than 1/32 of it.
set_to limit "events 10000000"
"$here/hog" other &
pids=$!
check "every period is regulated" "growth 100 unregulated" 0 "^0$"
echo 1 >$taken
"$here/take-counter" 0xfa11
check "with its counter taken no period is" "is $(growth 100 unregulated_or_missed) -ge 90" 0 yes
sleep 2
check "  and it keeps its timer, since the next one may have it" "is $(growth 100 timers_or_missed) -ge 90" 0 yes
check "  which the log says, once" "dmesg | grep -c 'CPU0: event raw has stopped counting'" 0 "^1$"
echo 0 >$taken
sleep 2
check "when the counter is free again it counts" "growth 100 unregulated" 0 "^0$"
check "  which the log says, too" "dmesg | grep -c 'CPU0: event raw counts again'" 0 "^1$"
stop_traffic
# An idle core notices it when it wakes up, inside the scheduler: own-debug detects operations
# that are not allowed there.
echo 1 >$taken
"$here/take-counter" 0xfa11
before=$(unregulated)
sleep 3
echo 0 >$taken
sleep 2
check "an idle core notices it, too" "is $(unregulated) -gt $before" 0 yes
check "  and is regulated again" "growth 100 unregulated" 0 "^0$"
check "the log has every loss" "dmesg | grep -c 'CPU0: event raw has stopped counting'" 0 "^2$"
check "  and every return" "dmesg | grep -c 'CPU0: event raw counts again'" 0 "^2$"
check "unloads" "unload" 0 ""

# The counter of writes, with a budget of its own and as one of two that share a budget.
for combined in 0 1; do
	modprobe memguard g_hw_type=page-faults g_write_counter_id=0xfa11 combined=$combined
	set_to limit "events 10000000"
	[ $combined = 1 ] || set_to write_limit "events 10000000"
	"$here/hog" other &
	pids=$!
	check "combined=$combined: every period is regulated" "growth 100 unregulated" 0 "^0$"
	lost=$(losses)
	echo 1 >$taken
	"$here/take-counter" 0xfa11
	check "  without the counter of writes no period is" "is $(growth 100 unregulated_or_missed) -ge 90" 0 yes
	sleep 2
	check "  which the log says" "is $(losses) -gt $lost" 0 yes
	echo 0 >$taken
	sleep 2
	check "  and it counts again" "growth 100 unregulated" 0 "^0$"
	stop_traffic
	check "  unloads" "unload" 0 ""
done
check "the counter's module unloads" "rmmod memwarden_pmu" 0 ""
finish
