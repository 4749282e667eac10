#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on Debian's kernel
# One budget over two events, page faults and minor faults, of which a fresh page is one
# each: 20 events are 10 pages. It holds as a budget of one event does, and is shared alike.
# shellcheck disable=SC2034 # for memguard.sh
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

# interrupts CPU: of the counters, in hundredths a period.
interrupts() { echo $(($(stat "$1" overflows) * 100 / $(stat "$1" periods))); }

check "an event that counts no writes is refused" "load combined=1" 1 ""
check "  with a line that says what to give" "dmesg" 0 \
	"event page-faults counts no writes, which the budget covers with combined=1: give g_write_counter_id="
check "  and nothing is left" "ls $G" 1 ""
check "two events of one budget are taken" "load g_write_counter_id=minor-faults combined=1" 0 ""
check "control says so" "setting combined; setting write_event" 0 "^1$"
check "  and which they are" "setting event; setting write_event" 0 "page-faults minor-faults"
check "there is no other budget" "set_to write_limit 'mb 100'" 1 ""
check "  as a line says" "dmesg" 0 "write_limit: one budget holds reads and writes together"
check "  and the file" "cat $G/write_limit" 0 "^not supported: one budget holds reads and writes together"

set_to limit "events 20 40 100 20"
for c in 0 1 2 3; do
	traffic $c 0
done
figures_over 2000
stop_traffic
STATS=/tmp/stats
for core in "0 20" "1 40" "2 100" "3 20"; do
	c=${core% *} events=${core#* }
	echo "# core $c: $(per_period "$c") hundredths of a period, $(stat "$c" used_max read) at most, $(interrupts "$c") hundredths of an interrupt"
	check "core $c has its $events events a period" "within $(per_period "$c") ${events}00 1" 0 yes
	check "  none has more" "stat $c used_max read" 0 "^$events$"
	check "  in the last second, too" \
		"within $(last_second "$c" used read) $((events * $(last_second "$c" periods))) 1" 0 yes
	check "  with a few interrupts" "is $(interrupts "$c") -le 500" 0 yes
	check "  writes have no figures of their own" "sed -n '/\"cpu\":$c,/p' /tmp/stats" 0 '"write":null'
done
STATS=

# Cores 1 and 2 have more demand than budget, 0 and 3 have none.
set_to limit "events 64 30 10 20"
traffic 1 0
traffic 2 0
set_to control "exclusive 2"
figures_over 200
check "spare sharing gives more" "is $(per_period 1) -gt 3300" 0 yes
set_to control "exclusive 5"
figures_over 200
check "proportional sharing is three to one" \
	"within $(($(stat 1 used read) * 1000 / $(stat 2 used read))) 3000 3" 0 yes
set_to control "exclusive 0"
set_to control "reclaim 1"
figures_over 200
sum=$(($(stat 0 used read) + $(stat 1 used read) + $(stat 2 used read) + $(stat 3 used read)))
most=$((124 * $(stat 1 periods)))
check "reclaim gives more" "is $(per_period 2) -gt 1500" 0 yes
check "  together never more than the budgets" "is $sum -le $((most + most / 100))" 0 yes
check "  and nearly all of them" "is $((sum * 100)) -ge $((most * 88))" 0 yes
set_to control "reclaim 0"
set_to control "rt 1 1"
figures_over 100
check "a real-time core is not held" "stat 1 throttled_periods" 0 "^0$"
check "  and is counted" "is $(per_period 1) -gt 3300" 0 yes
set_to control "rt 1 0"
stop_traffic
check "a core comes and goes" \
	"echo 0 >/sys/devices/system/cpu/cpu1/online && echo 1 >/sys/devices/system/cpu/cpu1/online && sleep 0.3 && setting online" 0 "^0-3$"
traffic 1 0
figures_over 200
check "  and is held" "within $(per_period 1) 3000 1" 0 yes
stop_traffic
check "unloads" "unload" 0 ""

# The regulator in user space: 40 events are 20 pages.
faults="--event page-faults --write-event minor-faults --combined --no-self-test"
in_user_space() {
	# shellcheck disable=SC2086
	memwarden guard run --backend user $faults --cpus 0 --events 40 -- memwarden bandwidth --fresh-pages -c 0 -t 2
}
check "the regulator in user space holds a core to such a budget" "in_user_space" 0 \
	'CPU0 1(4[5-9]|5[0-7])\.[0-9] of 156\.[23] MB/s, .* worst period 4[0-9] of 40 events'
# shellcheck disable=SC2086
memwarden guard start --backend user $faults >/tmp/started 2>&1
check "  says so" "cat /tmp/started" 0 "^guard: user, event page-faults \(4096 bytes, reads and write-backs together\)"
check "  says what counts in it" "cat /tmp/started" 0 "write-backs \(minor-faults\) count in the same budget"
check "  shows it" "memwarden guard show" 0 "event page-faults of 4096 bytes with write event minor-faults in one budget"
check "  and has no other" "memwarden guard set --write-mb 100" 1 "one budget for reads and write-backs together"
check "ends" "memwarden guard stop" 0 ""
finish
