#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernel: own-debug
# Both memory devices on the debug kernel: a report of KASAN, kmemleak, UBSAN or lockdep
# fails the run.
. /host/lab/check.sh
. /host/lab/mymem-device.sh

device_tests mymem
device_tests mymem_rust
check "random operations on mymem agree with the model" \
	"fresh mymem && /host/lab/mymem-model /dev/mymem $OPERATIONS 1" 0 'no difference'
check "random operations on mymem_rust agree with the model" \
	"fresh mymem_rust && /host/lab/mymem-model /dev/mymem_rust $OPERATIONS 2" 0 'no difference'

# KUnit tests, in KTAP.
for suite in memwarden-policy:memwarden_policy_kunit mymem:mymem_kunit mymem_rust:mymem_rust_kunit; do
	name=${suite%:*} module=${suite#*:}
	modprobe "$module"
	check "KUnit: $name" "cat /sys/kernel/debug/kunit/$name/results" 0 "^ok 1 $name"
	check "KUnit: $name skipped nothing" "cat /sys/kernel/debug/kunit/$name/results" 0 '!SKIP'
	rmmod "$module"
done

# The test from inside the kernel.
fresh mymem_rust
check "the test loads on the device that it tests" "modprobe mymem_test" 0 ''
check "which then cannot be unloaded" "rmmod mymem_rust" 1 ''
ask() { echo "$*" >/dev/mymem_test && cat /dev/mymem_test; }
check "throughput prints a line for each trial" "ask throughput 4096 50 | grep -cE '^[0-9]+ [0-9]+\$'" 0 '^50$'
check "with fetch-add no increment is lost" "ask counter 50 200 fetch-add" 0 '^10000 10000 [0-9]+$'
check "nor with a mutex" "ask counter 50 200 mutex" 0 '^10000 10000 [0-9]+$'
check "without a lock the count is not higher" \
	"ask counter 50 200 none | awk '{ exit \$2 > \$1 || \$2 < 2 }'" 0 ''
for line in '' counter 'counter 0 1 none' 'counter 257 1 none' 'counter 1 1 spin' 'counter 1 1 none x' \
	'throughput 0 1' 'throughput 524289 1' 'throughput 1 100001' 'throughput -1 1' 'x'; do
	check "a command as '$line' is refused" "ask $line" 1 'nvalid argument'
done
rmmod mymem_test

# Its two buffers would not fit beside a device of this size.
fresh mymem_rust "size=$(awk '/^MemAvailable/ { printf "%d", $2 * 1024 / 2 }' /proc/meminfo)"
modprobe mymem_test
check "a throughput that needs too much memory is refused" \
	"ask throughput \$(cat /sys/module/mymem_rust/parameters/size) 1" 1 'annot allocate memory|ut of memory'
rmmod mymem_test
fresh mymem_rust

# Modules in the wrong order: insmod looks for no dependencies.
rmmod mymem_rust
test=$(modinfo -n mymem_test)
check "without the device the test does not load" "insmod $test" 2 'unknown symbol'
check "and the kernel says which symbol it lacks" "dmesg | tail -n 10" 0 'mymem_test: Unknown symbol mymem_rust_(read|write|fetch_add)'

# One allocation of each load fails (every STRIDE-th of them is tried): the load fails
# cleanly, or succeeds without it.
for module in mymem mymem_rust; do
	rmmod "$module" 2>/dev/null
	file=$(modinfo -n "$module")
	check "$module: a load whose allocations fail leaves nothing" \
		"/host/lab/fail-nth $STRIDE $module $file" 0 "^loaded after [1-9][0-9]* failures"
done
check "no memory is leaked" "leaks" 0 '!unreferenced'
finish
