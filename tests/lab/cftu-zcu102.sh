#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# clock: free
# kernel: own-debug
# machine: zcu102
# cftu on a DMA engine that is hardware (QEMU's), under the kernel's own driver: no
# pause, and a channel that is stuck after a transfer was terminated.
. /host/lab/check.sh

operations=$OPERATIONS

check "it takes a channel for each CPU" "modprobe cftu && dmesg | tail -n 1" 0 "cftu: 4 channels of .*, aligned to 1 bytes, can't pause"
rmmod cftu
check "or all sixteen" "modprobe cftu channels=16 && dmesg | tail -n 1" 0 'cftu: 16 channels of '
check "more there are not" "rmmod cftu; modprobe cftu channels=17" 1 ''
modprobe cftu channels=16
check "copies are the CPU's" "/host/lab/cftu-model $operations 11" 0 'no difference'
check "while memory goes, signals come and the process forks" \
	"/host/lab/cftu-disturbed $(at_most 500 $((operations / 400)))" 0 'all as they must be'
check "exclusive: each CPU's copies are on its own channel" \
	"/host/lab/cftu-policies exclusive | awk '{ print \$4 }' | sort -u | tr '\n' ' '" 0 '^1 2 4 8 $'
check "shared: all sixteen are used" "/host/lab/cftu-policies shared | awk '\$4 > 0' | wc -l" 0 '^16$'
check "policies change under traffic" "/host/lab/cftu-policies switch $((operations / 100))" 0 'times'
rmmod cftu

# An interrupt that comes too late for whoever waits is a transfer that hangs: what
# was copied is copied again by CPU, and the channel taken anew.
modprobe cftu timeout_ms=0 poll_bytes=0
check "transfers whose end is not awaited" "/host/lab/cftu-model $((operations / 20)) 12" 0 'no difference'
rmmod cftu
finish
