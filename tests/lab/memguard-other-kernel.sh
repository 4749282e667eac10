#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What memguard uses of a kernel without a guarantee may change in a later one, without a compile
# error. memguard then says so: it refuses to load, or regulates with what is left.
# stock only: on a debug kernel the load makes fewer faults than the budget
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

# The policies of the throttle threads, as numbers: 1 is SCHED_FIFO, 6 SCHED_DEADLINE.
throttle_threads_policies() {
	for comm in $(grep -l '^memguard/' /proc/[0-9]*/comm); do
		cut -d ' ' -f 41 "${comm%comm}stat"
	done | tr '\n' ' '
}

CHANGES=/sys/module/memwarden_other_kernel/parameters/changes

check "perf keeps the distance of an event elsewhere" \
	"modprobe memwarden_other_kernel perf=1" 0 ""
check "  memguard refuses to load" "load" 1 "."
check "  which came from that" "is $(cat $CHANGES) -ge 1" 0 yes
check "  and the log says why, and what to do" "dmesg" 0 \
	"memguard: this kernel's perf keeps the distance of an event elsewhere .*--backend user$"
check "  and nothing is left of it" "ls -d $G /sys/module/memguard" 1 "No such file"
check "  guard start says it, too" \
	"memwarden guard start --backend module --event page-faults" 1 \
	"the kernel says: .*keeps the distance of an event elsewhere .*--backend user$"
check "  the regulator in user space is independent of it" \
	"memwarden guard run --backend user --event page-faults --cpus 1 --events 50 -- true" 0 ""
rmmod memwarden_other_kernel

check "as the kernel is, it loads" "load" 0 ""
check "  without a complaint" "dmesg | grep -c 'no scheduling class can hold a core'" 1 "^0$"
check "  with threads of SCHED_DEADLINE" "throttle_threads_policies" 0 "^6 6 6 6 $"
check "  and unloads" "unload" 0 ""

check "the scheduler drops the flag of schedutil's threads" \
	"modprobe memwarden_other_kernel scheduler=1" 0 ""
check "  memguard loads" "load" 0 ""
check "  each throttle thread's flag was dropped" "cat $CHANGES" 0 "^4$"
check "  the log says once what is lost" \
	"dmesg | grep -c 'refuses the flag of schedutil.*no scheduling class can hold a core'" 0 "^1$"
check "  the threads have SCHED_FIFO instead" \
	"throttle_threads_policies" 0 "^1 1 1 1 $"
set_to limit "mb 1000 100 100 100"
traffic 1 3
figures_over 1000
check "  and a core has its budget, but for some 50 ms in each second" \
	"within $(per_period 1) 2500 10" 0 "^yes"
stop_traffic
check "  and it unloads" "unload" 0 ""
rmmod memwarden_other_kernel
finish
