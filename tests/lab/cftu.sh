#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernel: own-debug
# cftu on the software engine, which fails and hangs on demand. The result of a copy must equal
# the CPU's, whatever the engine, the policy and the memory do. A report of KASAN,
# kmemleak, UBSAN or lockdep fails the run.
. /host/lab/check.sh
without_other_engines

operations=$OPERATIONS
parameters=/sys/module/cftu/parameters
engine=/sys/module/swdma/parameters

# fresh "PARAMETERS OF swdma" "PARAMETERS OF cftu"
fresh() {
	rmmod cftu 2>/dev/null
	rmmod swdma 2>/dev/null
	# shellcheck disable=SC2086
	modprobe swdma $1 && modprobe cftu $2
}
model() { /host/lab/cftu-model "$@"; }

# Without an engine.
check "without a channel it does not load" "modprobe cftu" 1 'No such device'
check "and names the remedy" "dmesg | tail -n 3" 0 'cftu: channels=0 .*: 0 free DMA channels that copy memory; load swdma'

# Parameters.
modprobe swdma channels=2
for wrong in channels=3 channels=65 align=3 align=8192 align=0 policy=none policy=exclusive \
	policy=priority provider=none poll_bytes=x; do
	check "$wrong is refused" "modprobe cftu $wrong" 1 ''
done
check "CPUs share channels with fold=1" "modprobe cftu policy=exclusive fold=1" 0 ''
check "only root may open the device" "stat -c %a /dev/cftu" 0 '^600$'
check "while it is loaded its engine cannot be unloaded" "rmmod swdma" 1 ''

# A CPU that comes online when all channels are assigned.
value() { /host/lab/cftu-statistics | sed -n "s/^$1 //p"; }
on_the_last_cpu() { taskset 8 /host/lab/cftu-disturbed 20 >/dev/null && value off_bytes; }
echo 0 >/sys/devices/system/cpu/cpu3/online
fresh channels=3 policy=exclusive
echo 1 >/sys/devices/system/cpu/cpu3/online
check "a CPU that comes online when no channel is free has none" on_the_last_cpu 0 '^[1-9]'
echo 0 >/sys/devices/system/cpu/cpu3/online
fresh channels=3 "policy=exclusive fold=1"
echo 1 >/sys/devices/system/cpu/cpu3/online
check "unless CPUs may share" on_the_last_cpu 0 '^0$'

# Compares copies by the engine with the same copies by the CPU.
check "copies equal the CPU's" "fresh channels=4 '' && model $operations 1" 0 'no difference'
check "also with an engine that needs an alignment of 8 bytes" \
	"fresh 'channels=4 copy_align=3' '' && model $((operations / 20)) 2" 0 'no difference'
check "and with one that needs whole cache lines" \
	"fresh channels=4 align=64 && model $((operations / 20)) 3" 0 'no difference'
check "and one that takes 100 bytes at a time and has 2 descriptors" \
	"fresh 'channels=2 max_length=100 descriptors=2' '' && model $(at_most 2500 $((operations / 40))) 4" 0 'no difference'
check "always polling" "fresh channels=4 poll_bytes=1000000 && model $((operations / 20)) 5" 0 'no difference'
check "never polling" "fresh channels=4 poll_bytes=0 && model $((operations / 20)) 6" 0 'no difference'
check "while memory is unmapped, signals come and the process forks" \
	"fresh channels=4 '' && /host/lab/cftu-disturbed $(at_most 500 $((operations / 400)))" 0 'all as they must be'

# An engine with faults.
fresh channels=4 timeout_ms=20
echo 7 >$engine/fail_every
check "an engine that fails: the CPU copies" "model $((operations / 20)) 7" 0 'no difference'
echo 0 >$engine/fail_every
echo 20000 >$engine/delay_ns
check "an engine that is slow" "model $((operations / 40)) 8" 0 'no difference'
echo 0 >$engine/delay_ns
echo 40 >$engine/hang
check "an engine that hangs: no copy hangs" "model $((operations / 40)) 9" 0 'no difference'
check "  also while memory is unmapped" "/host/lab/cftu-disturbed $(at_most 500 $((operations / 1000)))" 0 'all as they must be'
echo 0 >$engine/hang
check "afterwards all channels are alive" "/host/lab/cftu-policies exclusive | grep -c 'channels [1248]\$'" 0 '^4$'

# Requests.
check "a threshold can be set" "echo 4096 >$parameters/min_bytes && cat $parameters/min_bytes" 0 '^4096$'
check "no request causes a kernel warning" "/host/lab/cftu-ioctls $operations 1" 0 'requests, [0-9]+ of them taken'
check "policies change under traffic" "fresh channels=4 '' && /host/lab/cftu-policies switch $((operations / 100))" 0 'times'

# A process that is killed during a copy.
fresh channels=4 ''
for way in engine pinned cpu off; do
	check "a process that is killed: its copy ends, $way" "/host/lab/cftu-killed $way" 0 ', then killed'
done

# Loading and unloading.
cycle() {
	i=0
	while [ $i -lt "$CYCLES" ]; do
		fresh channels=4 '' || return 1
		i=$((i + 1))
	done
}
check "loaded and unloaded again and again" "cycle" 0 ''
rmmod cftu
rmmod swdma
if [ "$(uname -m)" = x86_64 ] && [ ! -e /sys/kernel/debug/kmemleak ]; then
	skip "no memory is leaked" "this kernel has no kmemleak"
else
	check "no memory is leaked" "leaks" 0 '!unreferenced'
fi
finish
