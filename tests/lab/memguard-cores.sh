#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# memguard while cores go offline and online, under traffic.
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

core() { echo "$2" >"/sys/devices/system/cpu/cpu$1/online"; }

# On amd64 CPU 0 stays online.
movable="0 1 2 3"
[ "$(uname -m)" != x86_64 ] || movable="1 2 3"

# A core is regulated a moment after it comes online.
until_online() {
	n=0
	while [ "$(setting online)" != "$1" ] && [ $((n += 1)) -lt 200 ]; do
		usleep 10000
	done
	setting online
}

# The masks of control that do not contain the CPU. A mask is a list, such as 0-1,3, or "none".
masks_without() { # CPU
	awk -F: -v cpu="$1" '/^(active|throttled|online):/ {
		gsub(/ /, "", $2)
		found = 0
		for (i = split($2, ranges, ","); i > 0; i--) {
			ends = split(ranges[i], range, "-")
			if (range[1] != "none" && cpu + 0 >= range[1] + 0 && cpu + 0 <= range[ends] + 0)
				found = 1
		}
		if (!found)
			printf "%s ", $1
	}
	END { print "" }' "$G/control"
}

core 2 0
check "loads with a core offline" "load" 0 ""
check "  and regulates the others" "setting online" 0 "^0-1,3$"
core 2 1
check "  and that core when it comes online" "until_online 0-3" 0 "^0-3$"

set_to limit "events 20 20 20 20"
for c in 0 1 2 3; do
	traffic $c 0
done
for c in $movable; do
	check "core $c goes offline under traffic" "core $c 0" 0 ""
	check "  and is removed from every mask" "masks_without $c" 0 "^online active throttled $"
	check "  and comes online again" "core $c 1; until_online 0-3" 0 "^0-3$"
	check "  with its budget" "cat $G/limit" 0 "^CPU$c: 20 "
done

# A core's first second back covers no part of the second that was cut short. Of several periods that
# the host lets pass at once, one is counted as a period and the others as missed.
cat "$G/stats" >/tmp/before
for c in $movable; do
	core $c 0
	usleep 300000
	core $c 1
done
until_online 0-3 >/dev/null
usleep 1100000
cat "$G/stats" >/tmp/stats
STATS=/tmp/stats
for c in $movable; do
	periods=$(last_second "$c" periods)
	missed=$(($(stat "$c" missed_periods) - $(STATS=/tmp/before && stat "$c" missed_periods)))
	expected=$(($(last_second "$c" ns) / 1000000))
	echo "# core $c: $periods periods in $(last_second "$c" ns) ns, $missed missed since it went offline," \
		"$(last_second "$c" used read) events"
	check "core $c's first second back has its periods" \
		"is $periods -gt 0 && is $((periods * 100)) -le $((expected * 101)) && is $(((periods + missed) * 100)) -ge $((expected * 99))" 0 '!^no'
	check "  and their events" "is $(last_second "$c" used read) -le $((periods * 21))" 0 yes
done
# shellcheck disable=SC2034 # for memguard.sh
STATS=
set_to control "exclusive 5"
set_to control "reclaim 1"
for c in $movable; do
	check "core $c goes offline and online with sharing on" \
		"core $c 0; core $c 1; until_online 0-3" 0 "^0-3$"
done
stop_traffic
unload

# A budget in MB/s has a tenth of the events in a period of 100 us.
if has_pmu; then
	load_cycles() { modprobe memguard g_hw_type=cycles; }
	check "loads with cycles, which the regulator itself uses" "load_cycles" 0 ""
	# Of this core: the setting least_events is for all of them. It is measured again when the core comes online, which
	# on the free clock gives another figure; so the budget is as small as the first one allows.
	set_to limit "cpu3 events 1" 2>/dev/null
	least=$(dmesg | sed -n 's/.* too few for CPU3: give \([0-9]*\) or more.*/\1/p' | tail -n 1)
	set_to limit "cpu3 mb $((least * 64000 / 1048576 + 1))"
	core 3 0
	set_to control "period_us 100"
	core 3 1
	check "a core comes online whose budget has become too small" "until_online 0-3; usleep 300000" 0 "^0-3$"
	check "  which the log says" "dmesg" 0 \
		"CPU3 came online with a budget of [0-9]+ events per period, which is too small: give it [0-9]+ or more"
	check "  and the smallest one is accepted" \
		"set_to limit \"cpu3 events \$(setting least_events)\"" 0 ""
	check "unloads" "unload" 0 ""
else
	skip "a core comes online with a small budget" "this machine counts no cycles"
fi

modprobe memwarden_pmu
core 2 0
modprobe memguard g_read_counter_id=0xfa11
echo 1 >/sys/module/memwarden_pmu/parameters/taken
core 2 1
sleep 2
check "a core that comes online while its counter is taken is not regulated" "setting online" 0 "^0-1,3$"
check "  which the log says" "dmesg" 0 "a core that came online is not regulated, as another user has its counter .error -16.: next attempt in 2 s"
# Nothing has shown yet what a throttle uses there. A busy core with a limit always has a timer.
check "  any budget is accepted for it" "set_to limit 'cpu2 events 100'" 0 ""
"$(dirname "$0")/hog" other 2 &
pids="$pids $!"
echo 0 >/sys/module/memwarden_pmu/parameters/taken
sleep 4
check "  and is when it is free again" "until_online 0-3; usleep 300000" 0 "^0-3$"
check "  a busy one is tried before its first stop: the log says that its budget is too small" "dmesg" 0 \
	"CPU2 came online with a budget of 100 events per period, which is too small: give it [0-9]+ or more"
check "  and the smallest one is accepted" "set_to limit \"cpu2 events \$(setting least_events)\"" 0 ""
stop_traffic
check "unloads" "unload" 0 ""

# Another core's failure lasts: its PMU has no such field.
core 1 0
modprobe memguard g_hw_type=0xfa11@0,0x11:config1=0x100@1,0xfa11@2-3
core 1 1
usleep 200000
check "a core whose event is refused is not regulated when it comes online" "setting online" 0 "^0,2-3$"
core 3 0
echo 1 >/sys/module/memwarden_pmu/parameters/taken
core 3 1
sleep 2
check "  nor is one whose counter is taken" "setting online" 0 "^0,2$"
echo 0 >/sys/module/memwarden_pmu/parameters/taken
sleep 4
check "  but that one is when the counter is free again" "setting online" 0 "^0,2-3$"
check "unloads" "unload && rmmod memwarden_pmu" 0 ""
finish
