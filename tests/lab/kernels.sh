#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Debian's other kernels: each boots, takes our modules, and memguard holds a core there for
# HOLD seconds.
# kernels: stock:6.1 stock:6.1-rt stock:6.12-rt stock:testing stock:testing-rt stock:newest stock:newest-rt
# full: it fetches and boots seven more kernels
# shellcheck disable=SC2034 # for memguard.sh
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

echo "# $(uname -rv)"
for module in memguard mymem swdma cftu copytrace; do
	check "$module was built for it" "modinfo -n $module" 0 "/extra/$module.ko$"
done

load
set_to limit "events 60 60 10 60"
traffic 2 0
# Longer than the scheduler keeps a class of tasks from the core: 50 ms in each second.
figures_over "${HOLD:-5}000"
stop_traffic
STATS=/tmp/stats
check "core 2 used its 10 events a period, within 1 %" "within $(per_period 2) 1000 1" 0 yes
check "  in the last second, too" \
	"within $(last_second 2 used read) $((10 * $(last_second 2 periods))) 1" 0 yes
check "  and few periods above it" \
	"is $(($(stat 2 over_periods read) * 100)) -le $(stat 2 periods)" 0 yes
check "  and was throttled for it" "is $(stat 2 throttled_periods) -gt 100" 0 yes
STATS=
check "memguard unloads" "unload" 0 ""

check "swdma loads" "modprobe swdma" 0 ""
check "cftu loads" "modprobe cftu" 0 ""
check "  and has its device" "ls /dev/cftu" 0 "^/dev/cftu$"
check "both unload" "rmmod cftu && rmmod swdma" 0 ""
check "mymem loads and unloads" "modprobe mymem && rmmod mymem" 0 ""
finish
