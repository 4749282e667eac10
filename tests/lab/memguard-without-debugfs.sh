#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# append: debugfs=off
# figures: of the counted clock on any kernel and platform
# A kernel without debugfs regulates as any other does.
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

check "debugfs is off" "mount -t debugfs debugfs /sys/kernel/debug" 255 "failed"
check "the module loads" "load" 0 ""
check "  and regulates" "dmesg" 0 "memguard: regulating 4 cores"
set_to limit "mb 1000 100 100 100"
traffic 1 3
figures_over 1000
check "  a core has its budget" "within $(per_period 1) 2500 1" 0 "^yes"
stop_traffic
check "  and it unloads" "unload && ls $G" 1 "No such file"
finish
