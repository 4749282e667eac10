#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# stock only: an own kernel has hooks
# copytrace on a kernel without hooks.
. /host/lab/check.sh

check "the kernel has no hooks" "modprobe copytrace from=hooks; dmesg | tail -n 2" 0 'from=hooks: this kernel has none'
check "it loads" "modprobe copytrace" 0 ''
check "no record is dropped or missed" "/host/lab/copytrace-count count 100" 0 'dropped 0 missed 0'
if [ "$(uname -m)" = aarch64 ]; then
	check "each copy of five kinds has its record, those of the __ forms too" \
		"/host/lab/copytrace-count count 100 | grep -c ': 400 of 400$'" 0 '^5$'
else
	check "each copy of three kinds has its record" \
		"/host/lab/copytrace-count count 100 | grep -c ': 400 of 400$'" 0 '^3$'
	skip "  the __ forms count with the others" "on amd64 they call no function that can be probed"
fi
check "a missed copy counts in the rings of its function that record then" "/host/lab/copytrace-missed >/tmp/missed; cat /tmp/missed" 0 \
	'^from_user all, to_user 0, from_user later few$'
check "and not in a later trace" "cat /tmp/missed" 0 '^from_user again 0$'
check "it unloads" "rmmod copytrace" 0 ''
finish
