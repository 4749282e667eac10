#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# clock: free
# memguard is loaded and unloaded under traffic, and random data is written to its files.
# The CPUs run concurrently on the host, which can expose races.
# CYCLES and WRITES are the repetitions; `make test-full` uses 1000 and 100000.
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

cycles=$CYCLES writes=$WRITES

# cycle TIMES
cycle() {
	i=0
	while [ $i -lt "$1" ]; do
		load || return 1
		set_to limit "events 60 20 20 20" || return 1
		usleep 3000
		unload || return 1
		i=$((i + 1))
	done
}

# Memory allocated from the slab allocator, in KiB.
slab() { sed -n 's/^SUnreclaim: *\([0-9]*\) kB/\1/p' /proc/meminfo; }

traffic 1 0
traffic 2 0
# The first cycles fill caches that stay allocated.
cycle 5
sync
if [ -e /sys/kernel/debug/kmemleak ]; then
	# The checkers of memory keep what was freed for a while: kmemleak knows which was not.
	check "loaded and unloaded $cycles times under traffic" "cycle $cycles" 0 ""
	check "  without a leak" "leaks" 0 '!unreferenced'
else
	before=$(slab)
	check "loaded and unloaded $cycles times under traffic" "cycle $cycles" 0 ""
	sleep 1
	after=$(slab)
	# A page that leaks in each cycle is 4 KiB: half of that, and half a MiB for what else goes on, is allowed. So a
	# page shows from some 250 cycles on, and 20 find what is larger than six.
	check "  without a leak ($before to $after KiB)" "is $((after - before)) -lt $((cycles * 2 + 512))" 0 yes
fi
stop_traffic

# The last core to use up its budget opens a period on all others, and settings kick all of
# them, all at the same time. Afterwards each core still has periods and its budget.
load
set_to control "exclusive 5"
set_to limit "events 2 2 2 2"
for c in 0 1 2 3; do
	"$(dirname "$0")/hog" other $c &
	pids="$pids $!"
done
kicks() {
	i=0
	while [ $i -lt "$1" ]; do
		set_to control "rt $((i % 4)) 1" && set_to control "rt $((i % 4)) 0" &&
			set_to control "period_us $((500 + i % 2 * 500))" || return 1
		i=$((i + 1))
	done
}
check "$((cycles * 10)) kicks of all cores beside the cores' own" "kicks $((cycles * 10))" 0 ""
set_to control "exclusive 0"
set_to control "period_us 1000"
# Without a limit a core owes nothing for the periods above.
set_to limit "max max max max"
# The shortest run in a period is ended by a timer, which is late when the host is busy. It takes up
# to an eighth of the period, and a core has fewer faults than these 60 in that time. What is used
# before the budget is used up needs no timer.
set_to limit "events 60 60 60 60"
figures_over 300
for c in 0 1 2 3; do
	# A host that has other work to do runs a core late: missed periods are counted, too.
	check "  after which core $c has periods" \
		"is $(($(stat $c periods) + $(stat $c missed_periods))) -gt 200" 0 yes
	# A sum over all periods would hide it: on a busy host a core that is never held uses less.
	check "  and stays within its budget in each one" "is $(stat $c used_max read) -le 80" 0 yes
done
stop_traffic
unload

load
check "$writes random writes to each file" "$(dirname "$0")/random-writes $writes 1" 0 "refused="
check "unloads" "unload" 0 ""
# The lab fails the whole run if the kernel logs a warning.
finish
