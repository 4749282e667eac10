#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# A core whose CPU is stopped by a hypervisor or firmware between its look at the clock and its
# period has the budgets of the period that it joins, be that hundreds later. Best effort begins
# periods early, so the clock and the period may be apart in any case.
# CHANGES is how often the budgets change while CPU 1 is stopped at each place.
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

S=/sys/module/memwarden_stop_cpu/parameters

# late PLACE US: CPU 1 is stopped there for a time while budgets change.
late() {
	begin_comparison
	modprobe memwarden_stop_cpu at="$1" cpu=1 us="$2" every_us=$(($2 + 2000))
	i=0
	while [ $i -lt "${CHANGES:-8}" ]; do
		change_settings $i
		# One change in a stop: after two, the core has the lower budget.
		usleep 12000
		i=$((i + 1))
	done
	stops=$(cat $S/stops)
	rmmod memwarden_stop_cpu
	end_comparison
	echo "# $1, $2 us: $stops stops"
	sed 's/^/# /' /tmp/compared
	check "CPU 1 was stopped at $1 for $2 us, many times" "is $stops -ge 4" 0 yes
	check "  periods are compared" "is $(sed 's/ .*//' /tmp/compared) -gt 500" 0 yes
	check "  all cores have the same budget in each" "cat /tmp/compared" 0 ", 0 unequal"
}

load
set_to control "exclusive 5"
set_to limit "events 2 2 2 2"
# 6.4 to 100 ms are 64 to 1000 periods of 100 us: more than best effort is ever ahead of the clock.
late mw_period_join 400
late mw_period_join 8000
late mg_clock_joined 8000
check "unloads" "unload" 0 ""
finish
