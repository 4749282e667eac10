#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# stock only: no module of ours is in it, the regulator is in user space
# A budget for a control group, as figures of the counted clock: four CPUs, page faults, two
# threads in the group, both ways to stop it. The regulator stops threads on other CPUs: the
# freezer takes the time of some faults, cpu.max up to two ticks. The faults meanwhile are
# owed, so the mean equals the budget.
. "$(dirname "$0")/check.sh"
# shellcheck source=tests/lab/memguard.sh
. "$(dirname "$0")/memguard.sh"

# As on a machine without systemd: no group has had a controller, and perf counts none.
control=/sys/fs/cgroup/cgroup.subtree_control
check "a group is counted where no controller was ever enabled" \
	"cat $control; memwarden guard run --cgroup early --event page-faults --events 4000 --json -- \
		memwarden bandwidth --fresh-pages -c 1 -t 1" 0 '"held":true,"not_held":null'
check "  and none is enabled afterwards" "cat $control" 0 '!.'
echo +cpu >$control
# Two processes that fault as fast as they can, for two seconds.
cat >/tmp/two <<'EOF'
memwarden bandwidth --fresh-pages -c 1 -t 2 >/dev/null &
memwarden bandwidth --fresh-pages -c 2 -t 2 >/dev/null
wait
EOF

# run OPTION...: runs both processes in the group; the summary is in /tmp/summary, and figures
# prints it as a comment.
run() {
	memwarden guard run --cgroup batch --event page-faults --json "$@" \
		-- sh /tmp/two 2>/tmp/said
	code=$?
	tail -n 1 /tmp/said >/tmp/summary
	cat /tmp/said
	return $code
}

figures() {
	sed 's/^/# /' /tmp/summary
}

# of KEY: a number of the summary, in hundredths.
of() {
	sed -n "s/.*\"$1\":\([0-9]*\)\(\.\([0-9]\)\?\([0-9]\)\?\)\?.*/\1 \3 \4/p" /tmp/summary |
		(read -r whole tenths hundredths; echo "$whole${tenths:-0}${hundredths:-0}")
}

# The worst and the least second are within this many percent of the budget.
seconds() {
	check "  over any second within $1 %" \
		"within $(of worst_second_mib_s) $(of budget_mib_s) $1; within $(of least_second_mib_s) $(of budget_mib_s) $1" 0 "!no"
}

check "the group is regulated" "run --events 4000 --period 50ms" 0 '"stop_with":"freezer"'
figures
seconds 5
check "  and the summary says that it was held" "cat /tmp/summary" 0 '"held":true,"not_held":null'
check "  and stopped in nearly every period" "is $(of stopped_periods) -ge 3800" 0 yes
check "  and the group is removed" "ls /sys/fs/cgroup" 0 "!batch"
stop_ns=$(of 'stop_ns":{"mean')
check "the same budget at periods of 10 ms" "run --events 800 --period 10ms" 0 '"stop_with":"freezer"'
figures
seconds 5
check "  at most 1.25 budgets in a period, and what comes during a stop" \
	"is $(of worst_period_events) -le $((100000 + $(of 'overshoot_events":{[^}]*"max')))" 0 yes
check "the same budget at periods of 1 ms" "run --events 80 --period 1ms" 0 '"stop_with":"freezer"'
figures
seconds 10
check "  at most 2 budgets in a period, and what comes during a stop" \
	"is $(of worst_period_events) -le $((16000 + $(of 'overshoot_events":{[^}]*"max')))" 0 yes
check "cpu.max stops it, too" "run --events 4000 --period 50ms --stop-with cpu-max" 0 '"stop_with":"cpu-max"'
figures
seconds 5
check "  with a later stop" "is $(of 'stop_ns":{"mean') -gt $stop_ns" 0 yes
check "  and the group is removed" "ls /sys/fs/cgroup" 0 "!batch"
check "a budget as small as the events of a stop" "run --events 5 --period 5ms" 0 '"stop_with":"freezer"'
figures
seconds 5
check "  stays stopped for its debt" "is $(of held_periods) -gt 0" 0 yes

mkdir /sys/fs/cgroup/kept
echo "50000 100000" >/sys/fs/cgroup/kept/cpu.max
check "the group's previous settings are restored" \
	"memwarden guard run --cgroup kept --event page-faults --events 9 --stop-with cpu-max -- sh /tmp/two; cat /sys/fs/cgroup/kept/cpu.max" \
	0 "^50000 100000$"

# Another process pauses the group for half a second, ten periods, and sets it going again.
pause() {
	memwarden guard run --cgroup kept --event page-faults --events 2000 --period 50ms -- sh /tmp/two >/tmp/said 2>&1 &
	sleep 1
	echo 1 >/sys/fs/cgroup/kept/cgroup.freeze
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		usleep 47000
		cat /sys/fs/cgroup/kept/cgroup.freeze
	done | sort -u
	echo 0 >/sys/fs/cgroup/kept/cgroup.freeze
	wait
}
check "a group that another process freezes stays frozen" "pause" 0 "^1$"
check "  in each period" "pause" 0 "!^0$"
check "  and runs on afterwards" "cat /tmp/said" 0 "MB/s, stopped .freezer"

# The group's owner changes its limit meanwhile.
limit() {
	memwarden guard run --cgroup kept --event page-faults --events 4000 --stop-with cpu-max --period 50ms -- sh /tmp/two >/tmp/said 2>&1 &
	sleep 1
	echo "70000 100000" >/sys/fs/cgroup/kept/cpu.max
	wait
	cat /sys/fs/cgroup/kept/cpu.max
}
check "a limit that another process sets is kept" "limit" 0 "^70000 100000$"

# A CPU that comes back is counted again.
cat >/tmp/hotplug <<'EOF'
memwarden bandwidth --fresh-pages -t 2 >/dev/null &
sleep 0.5
echo 0 >/sys/devices/system/cpu/cpu3/online
sleep 0.5
echo 1 >/sys/devices/system/cpu/cpu3/online
wait
EOF
check "CPUs may go offline and online" \
	"memwarden guard run --cgroup batch --event page-faults --events 4000 --period 50ms --json -- sh /tmp/hotplug 2>/tmp/summary" 0 ""
check "  and the budget holds" "within $(of used_events_per_stopped_period) 400000 10" 0 yes
check "  and the summary says what was not counted" "cat /tmp/summary" 0 '"held":false,"not_held":"CPU3 came online'

check "a program is pinned to the chosen cores" \
	"memwarden guard run --cpus 2-3 --backend user --event page-faults --no-self-test --mb 200 -- sh -c 'sh -c \"grep Cpus_allowed_list /proc/self/status\"'" \
	0 "2-3$"
check "  which must all exist" \
	"memwarden guard run --cpus 3-4 --backend user --event page-faults --no-self-test --mb 200 -- true" \
	1 "CPU 4 is not online"
finish
