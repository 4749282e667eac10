#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernels: stock:6.1 stock
# figures: of the counted clock on any kernel and platform
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

# The task then runs for 2 % of the time, far below real-time throttling, which comes soon once the
# task runs freely.
echo 200000 >/proc/sys/kernel/sched_rt_runtime_us
load
set_to limit "cpu1 events 5"
"$(dirname "$0")/hog" fifo 1 &
pids=$!
usleep 500000
figures_over 100
check "a real-time task uses up core 1's budget in each period" \
	"is $(stat 1 periods) -gt 0 && is $(($(stat 1 throttled_periods) * 100)) -ge $(($(stat 1 periods) * 90))" 0 '!^no'
rmmod memguard &
check "  and the module unloads" "gone 15" 0 yes
check "  while the task runs on" "kill -0 $pids" 0 ""
stop_traffic
finish
