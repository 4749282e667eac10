#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# clock: free
# memguard loaded and unloaded under traffic, and its files written with anything.
# The CPUs really run at once here, which is what finds races.
# CYCLES and WRITES say how often; `make test-full` asks for 1000 and 100000.
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

# What the slab allocator has given out, in KiB.
slab() { sed -n 's/^SUnreclaim: *\([0-9]*\) kB/\1/p' /proc/meminfo; }

traffic 1 0
traffic 2 0
# The first ones fill caches that stay.
cycle 5
sync
if [ -e /sys/kernel/debug/kmemleak ]; then
	# The checkers of memory keep what was freed for a while: kmemleak knows which was not.
	forget_leaks
	check "$cycles times loaded and unloaded under traffic" "cycle $cycles" 0 ""
	check "  without a leak" "leaks" 0 '!unreferenced'
else
	before=$(slab)
	check "$cycles times loaded and unloaded under traffic" "cycle $cycles" 0 ""
	sleep 1
	after=$(slab)
	# A page that leaks in each cycle is 4 KiB: half of that, and half a MiB for what else goes on, is allowed. So a
	# page shows from some 250 cycles on, and 20 find what is larger than six.
	check "  without a leak ($before to $after KiB)" "is $((after - before)) -lt $((cycles * 2 + 512))" 0 yes
fi
stop_traffic

load
check "$writes random writes to each file" "$(dirname "$0")/random-writes $writes 1" 0 "refused="
check "unloads" "unload" 0 ""
# A warning in the kernel's log fails the whole run: the lab sees to that.
finish
