#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernel: own-debug
# append: usercopy.dma=exclusive usercopy_region=8M
# A kernel that passes its copies to the engine, from the first byte on: programs run as without
# it, also on an engine with faults. KASAN, kmemleak and lockdep are on.
. /host/lab/check.sh
without_other_engines

engine=/sys/module/swdma/parameters

# A mix of processes, pipes, files, and many small and large reads and writes. Its
# checksums are in a folder that its find does not search.
work() {
	rm -rf /tmp/programs && mkdir -p /tmp/programs/tree && cd /tmp/programs &&
		head -c 200000 /bin/busybox >tree/busybox && cp /init /proc/filesystems tree &&
		tar cf - tree | gzip -1 | gunzip | { mkdir out && tar xf - -C out; } &&
		find . -type f | sort | xargs sha256sum >/tmp/sums &&
		seq 1 2000 | sort -r | awk '{ sum += $1 } END { print sum }' >>/tmp/sums &&
		dd if=tree/busybox of=copy bs=7777 2>/dev/null && cmp copy out/tree/busybox && sha256sum copy >>/tmp/sums &&
		ls /proc/self/ >/dev/null && cat /proc/cpuinfo >/dev/null && date >/dev/null &&
		cat /tmp/sums
}
statistics() { /host/lab/cftu-statistics | tr '\n' ' '; }
# value NAME
value() { /host/lab/cftu-statistics | sed -n "s/^$1 //p"; }

check "the policy is the kernel's" "cat /sys/module/usercopy/parameters/dma" 0 '^exclusive$'
check "another can be set" "echo none >/sys/module/usercopy/parameters/dma" 1 ''
work >/tmp/expected
check "programs run" "cat /tmp/expected" 0 'out/tree/busybox'

modprobe swdma channels=4
check "cftu begins with it" "modprobe cftu min_bytes=1 && value policy" 0 '^1$'
check "and has the kernel's copies" "dmesg | tail -n 1" 0 "the kernel's copies of 1 bytes or more use a channel"
check "and the region reserved at boot" "value region" 0 '^reserved$'
check "programs run as before" "work | cmp - /tmp/expected" 0 ''
check "the engine copied for them" "[ \$(value kernel_engine_bytes) -gt 500000 ]" 0 ''
statistics | sed 's/^/# /'
echo
check "on all channels" "/host/lab/cftu-policies exclusive | awk '{ print \$4 }' | sort -u | tr '\n' ' '" 0 '^1 2 4 8 $'

# Copies that fault, of memory that is unmapped and mapped. A signal comes each millisecond; the
# CPU copies the signal frames, since this engine is slower than that.
echo 4096 >/sys/module/cftu/parameters/min_bytes
check "user memory that is not present" "/host/lab/cftu-disturbed 20" 0 'all as they must be'
echo 1 >/sys/module/cftu/parameters/min_bytes

echo 7 >$engine/fail_every
check "on an engine that fails" "work | cmp - /tmp/expected && value failed_bytes" 0 '^[1-9]'
echo 0 >$engine/fail_every
echo 20 >/sys/module/cftu/parameters/timeout_ms
echo 400 >$engine/hang
check "on an engine that hangs" "work | cmp - /tmp/expected" 0 ''
echo 0 >$engine/hang
check "policies change at the same time" "/host/lab/cftu-policies switch 200 & work >/tmp/meanwhile; wait; cmp /tmp/meanwhile /tmp/expected" 0 'copies meanwhile'
unloaded_meanwhile() {
	work >/tmp/meanwhile &
	programs=$!
	usleep 300000
	kill -0 $programs && rmmod cftu
	unloaded=$?
	wait
	[ $unloaded = 0 ] && cmp /tmp/meanwhile /tmp/expected
}
check "unloaded while programs run" unloaded_meanwhile 0 ''

echo shared >/sys/module/usercopy/parameters/dma
check "shared: cftu begins with it" "modprobe cftu min_bytes=1 && value policy" 0 '^2$'
check "programs run as before" "work | cmp - /tmp/expected" 0 ''
statistics | sed 's/^/# /'
echo
rmmod cftu
check "the threshold is measured" "modprobe cftu && value min_bytes" 0 '^[1-9]'
check "programs run as before" "work | cmp - /tmp/expected" 0 ''
rmmod cftu

echo off >/sys/module/usercopy/parameters/dma
check "off: the CPU makes the kernel's copies" "modprobe cftu min_bytes=1 && work | cmp - /tmp/expected && value kernel_copies" 0 '^0$'
rmmod cftu
rmmod swdma
check "no memory is leaked" "leaks" 0 '!unreferenced'
finish
