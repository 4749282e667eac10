#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# clock: free
# full: it takes minutes, and budgets and periods are changed in other tests, too
# All cores change budgets in the same period, also while best effort begins periods early: then a
# core may join a period before the clock shows it. Only the free clock runs cores side by side.
# CHANGES is how often the budgets change.
# shellcheck disable=SC2034 # for memguard.sh
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

here=$(dirname "$0")
T=/sys/kernel/tracing

load
echo 16384 >$T/buffer_size_kb
set_to control "exclusive 5"
set_to limit "events 2 2 2 2"
for c in 0 1 2 3; do
	"$here/hog" other $c &
	pids="$pids $!"
done
usleep 200000
echo 1 >$T/events/memguard/period/enable
i=0
while [ $i -lt "${CHANGES:-2000}" ]; do
	events=$((2 + i % 2 * 2))
	set_to limit "events $events $events $events $events"
	[ $((i % 5)) != 0 ] || set_to control "period_us $((100 + i % 2 * 900))"
	i=$((i + 1))
done
echo 0 >$T/events/memguard/period/enable
stop_traffic
# Each period of each core: its number and the budget. Periods of one number are compared.
sed -n 's/.* period: epoch=\([0-9]*\) periods=1 .*assigned_read=\([0-9]*\) .*/\1 \2/p' $T/trace |
	sort -n | awk '
		$1 == number { same++; if ($2 != budget) unequal++ }
		{ number = $1; budget = $2 }
		END { print same + 0 " compared, " unequal + 0 " unequal" }' >/tmp/compared
: >$T/trace
sed 's/^/# /' /tmp/compared
check "many periods are compared" "is $(sed 's/ .*//' /tmp/compared) -gt 5000" 0 yes
check "all cores have the same budget in each" "cat /tmp/compared" 0 ", 0 unequal"
check "unloads" "unload" 0 ""
finish
