#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# stock only: an own kernel has hooks
# copytrace on a kernel without hooks.
. /host/lab/check.sh

check "the kernel has no hooks" "modprobe copytrace from=hooks; dmesg | tail -n 2" 0 'from=hooks: this kernel has none'
check "it loads" "modprobe copytrace" 0 ''
check "each copy of five kinds has its record" "/host/lab/copytrace-count count 100" 0 'dropped 0 missed 0'
check "  the __ forms count with the others" "/host/lab/copytrace-count count 100 | grep -c ': 400 of 400$'" 0 '^5$'
rmmod copytrace
finish
