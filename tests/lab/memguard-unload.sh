#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernels: stock:6.1 stock
# The module unloads while a real-time task uses up its core's budget in each period. On 6.1 such a
# core leaves nothing for ordinary threads, of which unloading needs some.
# shellcheck disable=SC2034 # for memguard.sh
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

# gone SECONDS: whether the module is unloaded by then.
gone() {
	n=0
	while [ -e /sys/module/memguard ] && [ $((n += 1)) -le $(($1 * 10)) ]; do
		usleep 100000
	done
	is ! -e /sys/module/memguard
}

for class in fifo deadline; do
	load
	set_to limit "events max 20 max max"
	"$(dirname "$0")/hog" $class 1 &
	pids=$!
	usleep 500000
	held=$(stat 1 throttled_periods)
	usleep 100000
	check "$class: core 1 is held in each period" "is $(($(stat 1 throttled_periods) - held)) -ge 90" 0 yes
	rmmod memguard &
	check "  and the module unloads" "gone 15" 0 yes
	stop_traffic
done
finish
