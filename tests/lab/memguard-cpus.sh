#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# append: nohz_full=3 isolcpus=3
# figures: of the counted clock on Debian's kernel and any platform
# Only some CPUs are regulated; and different events on different CPUs.
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

core() { echo "$2" >"/sys/devices/system/cpu/cpu$1/online"; }
budgets() { grep -c "^CPU$1: $2 (" "$G/limit"; }

# A core's mean events per period in the last second, from /tmp/show.
last_used() {
	sed "s/.*\"cpu\":$1,//; s/,{\"cpu\":.*//" /tmp/show | sed 's/"write":.*//' >/tmp/core
	used=$(sed 's/.*"last_second":{"used":\([0-9]*\).*/\1/' /tmp/core)
	periods=$(sed 's/.*"last_second":{"ns":[0-9]*,"periods":\([0-9]*\).*/\1/' /tmp/core)
	echo $((used / periods))
}

# Interrupts of all kinds on CPU 3 while it runs a busy task, in each of three seconds, the fewest
# first. The kernel's own work alone makes some 2 to 5. One of the guard's in each period would be 1000
# more; one for every second of the settings changed in some four seconds, an eighth of their number.
interrupts() { awk 'NR > 1 && NF > 4 && $5 ~ /^[0-9]+$/ { sum += $5 } END { print sum }' /proc/interrupts; }
interrupts_of_a_busy_core() {
	taskset -c 3 sh -c 'while :; do :; done' &
	busy=$!
	sleep 1
	for _ in 1 2 3; do
		before=$(interrupts)
		sleep 1
		after=$(interrupts)
		echo $((after - before))
	done | sort -n
	kill $busy
}
fewest() { echo "$1" | head -n 1; }
most() { echo "$1" | tail -n 1; }
# The minimum of five: the kernel's own work is not evenly spread.
a_switch() {
	for rounds in 5000 5000 5000 5000 5000; do
		/host/lab/switches 3 $rounds
	done | sort -n | sed 's/ .*//;q'
}

# ---- the guard's effect on an unregulated CPU ----
alone=$(interrupts_of_a_busy_core)
switch=$(a_switch)
load cpus=0-2
set_to limit "mb 100 100 100"
for c in 0 1 2; do
	traffic $c 0
done
: >/tmp/changes
(while sleep 0.1; do set_to limit "mb 100 100 100"; cat "$G/stats"; echo >>/tmp/changes; done) >/dev/null &
settings=$!
beside=$(interrupts_of_a_busy_core)
kill $settings
stop_traffic
beside_switch=$(a_switch)
unload
changes=$(wc -l </tmp/changes)
echo "# CPU3 left alone: $(echo $alone) interrupts in each of three seconds without the module, $(echo $beside) beside it" \
	"and its $changes changed settings; $switch and $beside_switch ns a switch"
check "a switch is measured" "is \"$switch\" -gt 0 && is \"$beside_switch\" -gt 0" 0 "!^no"
check "settings are changed all the while" "is $changes -ge 32" 0 "^yes"
check "an unregulated CPU has no interrupt of the guard" \
	"is $(fewest "$beside") -le $(($(most "$alone") + changes / 8))" 0 "^yes"
# Some 40 to 100 more, also on a regulated core: this bounds the tracepoint's cost only.
check "  and a switch on it takes less than 300 instructions more" \
	"is $((beside_switch - switch)) -le 300" 0 "^yes"

# ---- some CPUs only ----
check "it loads for some CPUs only" "load cpus=1-2" 0 ""
check "  and prints how many" "dmesg" 0 "memguard: regulating 2 cores every 1000 us by page-faults"
check "  and control shows them" "cat $G/control" 0 "^cpus: 1-2$"
check "  only they have a thread" "ps | grep -c '[m]emguard/'" 0 "^2$"
check "  and lines in each file" "cat $G/limit $G/share $G/failcnt $G/stats" 0 '!^CPU[03]|"cpu":[03]'
set_to limit "mb 10 20"
check "  budgets go to them in order" "is $(budgets 1 2)$(budgets 2 5) = 11" 0 "^yes"
check "a budget for another CPU is refused" "set_to limit 'cpu0 mb 10'" 1 ""
check "  in a line that says why" "dmesg" 0 "limit: that cpu is not regulated: it is not among cpus="
check "a third budget is refused" "set_to limit 'mb 1 1 1'" 1 ""
check "an exemption of another CPU is refused" "set_to control 'rt 3 1'" 1 ""
check "memwarden says why, too" "memwarden guard set --mb 100 --cpu 0" 1 "the guard regulates cores 1-2"
set_to limit "events 20 20"
traffic 0 3
traffic 1 3
figures_over 1000
check "  a regulated core has its budget" "within $(per_period 1) 2000 1" 0 "^yes"
check "  the other one is not in the statistics" "wc -l <$STATS" 0 "^2$"
stop_traffic
for c in 1 3; do
	core $c 0
	core $c 1
done
usleep 500000
check "cores go offline and online, and only the chosen ones are regulated" "setting online" 0 "^1-2$"
check "  with their budgets" "budgets 1 20" 0 "^1$"
unload
for cpus in 9 x '' 0-9; do
	check "cpus=$cpus is refused" "load cpus=$cpus" 1 ""
	check "  with a line that lists the existing CPUs" "dmesg | tail -n 1" 0 "memguard: cpus=$cpus: give CPUs of this machine, 0-3"
done

for backend in module user; do
	start="memwarden guard start --backend $backend --event page-faults --no-self-test"
	check "$backend: guard start --cpus" "$start --cpus 1-2" 0 "cores 1-2"
	check "  budgets go to them in order" "memwarden guard set --mb 10,20 && memwarden guard show --json | tr -d ' \n'" 0 \
		'"cpus":"1-2".*"1":2,"2":5'
	check "  and other CPUs are refused" "memwarden guard set --mb 10 --cpu 3" 1 "the guard regulates cores 1-2"
	check "  it ends" "memwarden guard stop" 0 ""
	check "  a CPU that does not exist is refused" "$start --cpus 2-7" 1 "there is no CPU 4 on this machine"

	# ---- each CPU its own event ----
	events=page-faults@0-1,instructions@2-3
	start="memwarden guard start --backend $backend --no-self-test"
	check "$backend: events that differ in bytes are refused" "$start --event $events" 1 "bytes of traffic"
	check "  with --bytes-per-event they are accepted" "$start --event $events --bytes-per-event 4096" 0 "event $events"
	check "  and printed, each with its meaning" "memwarden guard show" 0 "page-faults"
	# On a platform's machine the regulator in user space needs some 91,000 instructions.
	check "  budgets are accepted" "memwarden guard set --events 20,20,100000,100000" 0 ""
	traffic 1 3
	traffic 3 3
	usleep 2500000
	memwarden guard show --json | tr -d ' \n' >/tmp/show
	stop_traffic
	check "  faults are held to their budget" "within $(last_used 1) 20 10" 0 "^yes"
	# The thread in user space spins while it holds a core, and its instructions count.
	[ $backend = user ] ||
		check "  and instructions to theirs" "within $(last_used 3) 100000 10" 0 "^yes"
	check "  it ends" "memwarden guard stop" 0 ""
	check "a CPU without an event is refused" "$start --event page-faults@0-1" 1 "CPU ?2 has (none|no event)"
	check "  and one named twice" "$start --event page-faults@0-3,cycles@1" 1 "CPU 1 is named twice"

	# ---- write-backs by CPU, and a PMU's other fields ----
	writes=0x11@0-1,0x24@2-3
	check "$backend: each kind of CPU has its write event" "$start --event 0x23 --write-event $writes" 0 ""
	check "  which is printed as it was given" "memwarden guard show --json | tr -d ' \n'" 0 "\"write_event\":\"$writes\""
	check "  it ends" "memwarden guard stop" 0 ""
	check "  a list that leaves out a CPU is refused" "$start --event 0x23 --write-event 0x11@0-1" 1 "CPU ?2 has (none|no event)"
	check "  and so is a name" "$start --event 0x23 --write-event cycles" 1 "give its raw code"
	check "a field that the PMU has is accepted" "$start --event 0x11:config1=0x1" 0 "event 0x11:config1=0x1"
	check "  it ends" "memwarden guard stop" 0 ""
	check "a field that it lacks is refused" "$start --event 0x11:config2=0x1" 1 "no field for config2|no such field"
	check "  and one that no PMU has" "$start --event 0x11:config3=0x1" 1 "no field .config3."
done
finish
