#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernel: own-debug
# The lab's own kernel: it has the options of lab/config and the patches, and vm.reclaim_active
# works as its patch says, in an experiment that restores all settings.
. /host/lab/check.sh

switch=/proc/sys/vm/reclaim_active

check "the kernel is ours" "uname -r" 0 '^6\.12\.[0-9]+-memwarden-debug$'
for option in RUST KASAN DEBUG_KMEMLEAK UBSAN PROVE_LOCKING PROVE_RCU KUNIT RECLAIM_ACTIVE; do
	check "it has $option" "zcat /proc/config.gz" 0 "^CONFIG_$option=y\$"
done
check "its clock is set" "date +%Y" 0 '^20[2-9]'
check "its CPUs can go offline" "cat /sys/devices/system/cpu/cpu1/online" 0 '^1$'
check "the switch is off" "cat $switch" 0 '^0$'
check "it refuses 2" "echo 2 >$switch" 1 ''
check "and -1" "echo -1 >$switch" 1 ''

# The swap device is a RAM disk.
mkswap /dev/ram0 >/dev/null
check "memwarden mmap reclaim runs" \
	"memwarden mmap reclaim --swap /dev/ram0 --repeat 1 --rounds 1 --json --out /tmp/reclaim >/tmp/reclaim.json" 0 ''
median() {
	tr -d ' \n' </tmp/reclaim.json | grep -o '"hot_major_faults":{[^}]*' | sed -n "$1{s/.*\"median\"://;s/[,.].*//p}"
}
off=$(median 1) on=$(median 2)
check "both were counted: $off and $on" "echo $off $on" 0 '^[0-9]+ [0-9]+$'
check "with the switch, pages in use are read back more often" "[ $((on)) -gt $((2 * off)) ]" 0 ''
check "the switch is restored" "cat $switch" 0 '^0$'
check "no swap space is left" "wc -l </proc/swaps" 0 '^1$'
check "no group is left" "! ls -d /sys/fs/cgroup/memwarden-* 2>/dev/null" 0 ''
finish
