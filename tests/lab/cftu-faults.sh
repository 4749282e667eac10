#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernel: own-debug
# append: usercopy.dma=shared
# cftu on a faulty engine, which hides errors, calls back twice, fails a submission after its
# callback, and continues or calls back after a terminate; and with user memory that is not
# present during the copy. A report of KASAN, kmemleak or lockdep fails the run.
. /host/lab/check.sh

operations=$((OPERATIONS / 40))
engine=/sys/module/swdma/parameters

# fresh "PARAMETERS OF swdma" "PARAMETERS OF cftu"
fresh() {
	rmmod cftu 2>/dev/null
	rmmod swdma 2>/dev/null
	# shellcheck disable=SC2086
	modprobe swdma channels=4 $1 && modprobe cftu $2
}
model() { /host/lab/cftu-model "$@"; }
value() { /host/lab/cftu-statistics | sed -n "s/^$1 //p"; }

# The known properties of the provider.
fresh '' ''
check "swdma reports errors: nothing is compared" "value compares" 0 '^0$'
check "  and that it stops on terminate" "value stops" 0 '^1$'
# A transfer on a busy emulator may take seconds.
fresh driver=other timeout_ms=100000
check "of another driver neither is known: bytes are compared" "value compares" 0 '^1$'
check "  a line says that bytes are compared" "dmesg | grep cftu: | tail -n 2" 0 'of other, .*; bytes are compared'
check "  and that it may not stop" "value stops" 0 '^0$'

# Errors that are not reported, as by zynqmp_dma.
check "copies equal the CPU's" "model $operations 21" 0 'no difference'
check "  and there are no mismatches" "value mismatches" 0 '^0$'
echo 7 >$engine/fail_silent
check "an engine that hides errors: the CPU copies again" "model $operations 22" 0 'no difference'
check "  and each is counted" "value mismatches" 0 '^[1-9]'
check "  while memory is unmapped" "/host/lab/cftu-disturbed 20" 0 'all as they must be'
echo 0 >$engine/fail_silent
check "  no channel is lost" "value dead" 0 '^0$'

# Callbacks that no transfer awaits.
echo 3 >$engine/twice
check "an engine that calls back twice" "model $operations 23" 0 'no difference'
echo 0 >$engine/twice
echo 5 >$engine/submit_fails
check "an engine that calls back a submission and then refuses it" "model $operations 24" 0 'no difference'
check "  the CPU copied" "value failed_bytes" 0 '^[1-9]'
echo 0 >$engine/submit_fails
check "  no channel is lost" "value dead" 0 '^0$'
fresh '' ''
echo 3 >$engine/twice
echo 5 >$engine/submit_fails
check "the same without a comparison" "model $operations 25" 0 'no difference'
fresh channels=1 timeout_ms=20
check "a callback that comes after its transfer was terminated ends no other transfer" \
	/host/lab/cftu-late 0 'right, after 1 timeouts'

# User memory that is not present, in the kernel's own copies and in a request.
modprobe memwarden_stall
fresh '' min_bytes=1
stall() { /host/lab/cftu-stall "$@"; }
check "a read into memory that is not present: nothing is pinned" "stall to" 0 'waits with 0 pages pinned'
check "a request of 4 MiB: nothing is pinned" "stall device" 0 'waits with 0 pages pinned'
check "  and the result is right" "stall device" 0 'copied 4194304 of 4194304, right 4194304'
check "cftu unloads while a read waits for its memory" "stall to 'rmmod cftu'" 0 '^rmmod cftu: ends'
check "  the read's result is right" "modprobe cftu min_bytes=1; stall to 'rmmod cftu'" 0 'copied 4096 of 4096, right 4096'
check "cftu unloads while a write waits for its memory" "modprobe cftu min_bytes=1; stall from 'rmmod cftu'" 0 '^rmmod cftu: ends'
rmmod memwarden_stall

# An engine that continues after a terminate, like zynqmp_dma's. Last, since cftu stays loaded.
fresh driver=other timeout_ms=20
echo 9 >$engine/runaway
check "an engine that runs on after a terminate: its memory has no new owner" "/host/lab/cftu-lost 20" 0 '^20 copies, all as they must be'
echo 0 >$engine/runaway
check "  pages stay allocated" "value held_pages" 0 '^[1-9]'
check "  and channels are dead" "value dead" 0 '^[1-4]$'
check "  a line says so" "dmesg | grep 'stay allocated'" 0 'cftu: .*: no copy uses it any more; [0-9]+ pages stay allocated, and cftu loaded'
check "  copies continue, by CPU" "/host/lab/cftu-disturbed 20" 0 'all as they must be'
check "  cftu stays loaded" "rmmod cftu" 1 ''
finish
