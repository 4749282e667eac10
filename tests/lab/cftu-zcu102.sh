#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernel: own-debug
# machine: zcu102
# cftu on a DMA engine of QEMU's hardware, with the kernel's own driver, which cannot pause,
# reports no errors and does not stop.
. /host/lab/check.sh

operations=$OPERATIONS
value() { /host/lab/cftu-statistics | sed -n "s/^$1 //p"; }

check "the kernel has random numbers, as on a board" "dmesg" 0 "random: crng init done"
check "it takes a channel for each CPU" "modprobe cftu timeout_ms=100000 && dmesg | tail -n 1" 0 "cftu: 4 channels of .*, aligned to 1 bytes, can't pause"
check "its driver hides errors: bytes are compared" "value compares" 0 '^1$'
check "  and it does not stop a transfer" "value stops" 0 '^0$'
rmmod cftu
check "it takes all sixteen" "modprobe cftu channels=16 && dmesg | tail -n 1" 0 'cftu: 16 channels of '
check "more than sixteen are refused" "rmmod cftu; modprobe cftu channels=17" 1 ''
modprobe cftu channels=16 timeout_ms=100000
check "copies equal the CPU's" "/host/lab/cftu-model $operations 11" 0 'no difference'
check "while memory is unmapped, signals come and the process forks" \
	"/host/lab/cftu-disturbed $(at_most 500 $((operations / 400)))" 0 'all as they must be'
check "exclusive: each CPU's copies use its own channel" \
	"/host/lab/cftu-policies exclusive | awk '{ print \$4 }' | sort -u | tr '\n' ' '" 0 '^1 2 4 8 $'
check "shared: all sixteen are used" "/host/lab/cftu-policies shared | awk '\$4 > 0' | wc -l" 0 '^16$'
check "policies change under traffic" "/host/lab/cftu-policies switch $((operations / 100))" 0 'times'
for way in engine pinned; do
	check "a process that is killed while it waits for a low part: its copy ends, $way" \
		"/host/lab/cftu-killed $way" 0 ', then killed'
done
rmmod cftu

# A late interrupt counts as a transfer that hangs. Last, since cftu then stays loaded.
modprobe cftu timeout_ms=0 poll_bytes=0
check "transfers whose end is not awaited" "/host/lab/cftu-disturbed $(at_most 50 $((operations / 20)))" 0 'all as they must be'
check "  an abandoned channel keeps its pages" \
	"[ \$((\$(value held_pages) > 0)) = \$((\$(value dead) > 0)) ]" 0 ''
finish
