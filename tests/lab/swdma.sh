#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernel: own-debug
# The DMA engine in software on the debug kernel: the kernel's own dmatest copies on all
# channels, the KUnit suite covers what dmatest doesn't, and a report of KASAN, kmemleak or
# lockdep fails the run.
. /host/lab/check.sh
without_other_engines

parameters=/sys/module/swdma/parameters

fresh() {
	rmmod swdma 2>/dev/null
	modprobe swdma "$@"
}

# dma_test OPTIONS...: runs dmatest on all channels and prints what it has logged.
dma_test() {
	dmesg -c >/dev/null
	modprobe dmatest "$@" timeout=3000 run=1
	cat /sys/module/dmatest/parameters/wait >/dev/null
	rmmod dmatest
	dmesg | grep dmatest | tee /tmp/dmatest
}

# suite PARAMETERS...: the KUnit suite on a device with them.
suite() {
	fresh "$@"
	modprobe swdma_kunit "everything_ms=$(at_most 3000 $((CYCLES * 50)))"
	results=/sys/kernel/debug/kunit/swdma/results
	check "KUnit${*:+ with }$*" "cat $results" 0 '^ok 1 swdma'
	grep -E -A 4 'not ok|EXPECTATION|ASSERTION' $results | sed 's/^/# /'
	sed -n 's/^ *# a_copy_is_paused_within_a_step: paused/# paused/p; s/^ *# everything_at_once.*: \([0-9]* of\)/# \1/p' $results
	[ -n "$*" ] || check "KUnit skipped nothing" "cat $results" 0 '!SKIP'
	rmmod swdma_kunit
}

check "it loads" "fresh && dmesg | tail -n 3" 0 'swdma swdma: 4 channels with 64 descriptors each'
check "it has four channels" "ls /sys/class/dma | wc -l" 0 '^4$'
check "and a thread for each" "ps | grep -c '[[]swdma/[0-3]]'" 0 '^4$'

# 64 KiB at most, at any alignment, compared byte for byte.
check "dmatest: $TRANSFERS copies on each channel, all right" \
	"dma_test iterations=$TRANSFERS test_buf_size=65536 | grep -c 'summary $TRANSFERS tests, 0 failures'" 0 '^4$'
sed -n 's/.*dmatest: \(.* summary\)/# \1/p' /tmp/dmatest
check "dmatest that polls: the same" \
	"dma_test iterations=$TRANSFERS polled=1 | grep -c 'summary $TRANSFERS tests, 0 failures'" 0 '^4$'
check "three clients per channel: the same" \
	"dma_test iterations=$TRANSFERS threads_per_chan=3 | grep -c 'summary $TRANSFERS tests, 0 failures'" 0 '^12$'

echo 10 >$parameters/fail_every
check "a channel's every tenth copy fails" \
	"dma_test iterations=100 | grep -c 'summary 100 tests, 10 failures'" 0 '^4$'
check "and one that polls sees it too" \
	"dma_test iterations=100 polled=1 | grep -c 'summary 100 tests, 10 failures'" 0 '^4$'
echo 0 >$parameters/fail_every
echo 5 >$parameters/hang
check "the fifth hangs, and the channel with it" \
	"dma_test iterations=6 | grep -c 'summary 6 tests, 2 failures'" 0 '^4$'
echo 0 >$parameters/hang
echo 1000000 >$parameters/delay_ns
check "late copies are right" "dma_test iterations=50 | grep -c 'summary 50 tests, 0 failures'" 0 '^4$'
check "it refuses an invalid delay" "echo x >$parameters/delay_ns" 1 'nvalid'

fresh copy_align=3 max_length=16384 channels=2
check "dmatest respects an alignment of 8 bytes" \
	"dma_test iterations=100 test_buf_size=16384 | grep -c 'summary 100 tests, 0 failures'" 0 '^2$'
fresh cpus=1,3 channels=3
check "threads are pinned in turn" \
	"for pid in \$(ps | sed -n 's/^ *\([0-9]*\).*[[]swdma.*/\1/p'); do sed -n 's/^Cpus_allowed_list:.//p' /proc/\$pid/status; done | tr '\n' ' '" 0 '^1 3 1 $'

fresh
modprobe dmatest
echo dma0chan0 >/sys/module/dmatest/parameters/channel
check "a requested channel keeps the module loaded" "rmmod swdma" 1 ''
rmmod dmatest
check "when it is released the module can be unloaded" "rmmod swdma" 0 ''
check "no channel is left" "ls /sys/class/dma | wc -l" 0 '^0$'
check "nor a device" "ls /sys/bus/platform/devices /sys/bus/platform/drivers" 0 '!swdma'
check "nor a thread" "ps" 0 '![[]swdma'

for parameter in channels=0 channels=65 descriptors=0 descriptors=4097 copy_align=9 max_length=0 \
	driver= cpus=99 cpus=x 'copy_align=4 max_length=15'; do
	check "it refuses $parameter" "modprobe swdma $parameter" 1 'Invalid argument|can.t load'
	last=${parameter##* }
	check "and prints the allowed values" "dmesg | tail -n 1" 0 "swdma: ${last%%=*}=${last#*=}: give "
done

suite
suite copy_align=3 max_length=4096 descriptors=4
suite channels=64 descriptors=4096 cpus=0
check "it loads and unloads $CYCLES times" \
	"for i in \$(seq $CYCLES); do rmmod swdma && modprobe swdma || exit 1; done" 0 ''

check "no memory is leaked" "leaks" 0 '!unreferenced'

# One allocation of each load fails (every STRIDE-th of them is tried): the load fails
# cleanly, or succeeds without it.
rmmod swdma
check "a load whose allocations fail leaves nothing" \
	"/host/lab/fail-nth $STRIDE swdma $(modinfo -n swdma)" 0 '^loaded after [1-9][0-9]* failures'

# If a channel's device cannot be registered, dmaengine itself leaks its name.
ours() {
	leaks | awk 'function show() { if (leak != "" && leak !~ /dev_set_name.*dma_async_device_register/) print leak; leak = "" }
		/^unreferenced/ { show() } { leak = leak $0 } END { show() }'
}
check "then only dmaengine's own names are leaked" ours 0 '!unreferenced'
finish
