# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
# Functions of the memguard tests: loading, settings, traffic, figures.
# Runs in the guest. Traffic is page faults: 4096 bytes an event.

G=/dev/memguard T=/sys/kernel/tracing

load() { modprobe memguard g_hw_type=page-faults "$@"; }
unload() { rmmod memguard; }

# set FILE TEXT: one write, like that of `echo`.
set_to() { echo "$2" >"$G/$1"; }

# stat CPU KEY [read|write]: one figure of a core; last_second CPU KEY [read|write]: one of
# the last second.
stat() { figure 's/"last_second":{[^}]*},//g' "$@"; }
last_second() { figure 's/{[^{}]*"last_second":{/{/g' "$@"; }

figure() {
	line=$(sed -n "/\"cpu\":$2,/p" "${STATS:-$G/stats}" | sed "$1")
	shift
	[ -n "$3" ] && line=${line#*\""$3"\":}
	echo "$line" | sed -n "s/[^}]*\"$2\":\([0-9a-z]*\).*/\1/p" | head -n 1
}

setting() { sed -n "s/^$1: //p" "$G/control"; }

# traffic CPU SECONDS: faults on a core at full speed, in the background.
traffic() {
	memwarden bandwidth --fresh-pages -c "$1" -t "$2" >/dev/null &
	pids="$pids $!"
}

# figures_over MILLISECONDS: let traffic settle, then keep its figures, from a
# clean start, where stat looks for them.
figures_over() {
	usleep 100000
	set_to control reset
	usleep "$1"000
	cat "$G/stats" >/tmp/stats
	STATS=/tmp/stats
}

# per_period CPU: events used per period, in hundredths.
per_period() {
	echo $(($(stat "$1" used read) * 100 / $(stat "$1" periods)))
}

stop_traffic() {
	# shellcheck disable=SC2086
	[ -n "$pids" ] && kill $pids 2>/dev/null
	wait
	pids=
	STATS=
}

# fair_server NS: sets the part of each second that the scheduler keeps for ordinary tasks, on each CPU.
fair_server() {
	for runtime in /sys/kernel/debug/sched/fair_server/cpu*/runtime; do
		echo "$1" >"$runtime"
	done
}

# At 5 events per period a core runs for 2 % of the time. 6.12's fair server, which has 5 %,
# takes all of that from real-time tasks; on PREEMPT_RT timers and RCU are such tasks.
leave_real_time_tasks_some() {
	case $(uname -rv) in
	6.12.*PREEMPT_RT*) fair_server 1000000 ;;
	esac
}

# The amd64 machine has no PMU. On arm64 a missing one fails the checks that need it.
has_pmu() { [ "$(uname -m)" != x86_64 ] || [ -e /sys/bus/event_source/devices/cpu ]; }

# Interrupts of CPU 0's timer.
timers_of_0() { sed -n 's/^ *[0-9]*: *\([0-9]*\) .*arch_timer$/\1/p; s/^ *LOC: *\([0-9]*\) .*/\1/p' /proc/interrupts; }

# begin_comparison, change_settings I, end_comparison: four cores have full load while settings are
# changed, the I-th change doubling all budgets or halving them. Their periods are then in
# /tmp/compared, as "N compared, N unequal": the budgets of periods with the same number.
begin_comparison() {
	for cpu in 0 1 2 3; do
		"$(dirname "$0")/hog" other $cpu &
		pids="$pids $!"
	done
	usleep 200000
	echo 16384 >$T/buffer_size_kb
	echo 1 >$T/events/memguard/period/enable
}

change_settings() {
	events=$((2 + $1 % 2 * 2))
	set_to limit "events $events $events $events $events"
	[ $(($1 % 5)) != 0 ] || set_to control "period_us $((100 + $1 % 2 * 900))"
}

end_comparison() {
	echo 0 >$T/events/memguard/period/enable
	stop_traffic
	"$(dirname "$0")/periods" <$T/trace >/tmp/compared
	: >$T/trace
}

# is CONDITION...: a test as a word that `check` can match.
is() {
	if [ "$@" ]; then echo yes; else echo "no: $*"; fi
}

# within VALUE TARGET PERCENT. A missing figure, or a target of 0, is not within any percentage.
within() {
	if [ $# != 3 ] || [ "$2" = 0 ]; then
		echo "no: there is nothing to compare: $*"
	elif [ $(($1 * 100)) -ge $(($2 * (100 - $3))) ] &&
		[ $(($1 * 100)) -le $(($2 * (100 + $3))) ]; then
		echo "yes: $1"
	else
		echo "no: $1 is not within $3 % of $2"
	fi
}
