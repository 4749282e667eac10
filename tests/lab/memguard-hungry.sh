#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on any kernel and platform
# Four cores with unlimited demand, each with its own budget, at periods of 1 ms and of
# 100 us. HOLD is the duration in seconds; ten minutes: HOLD=600.
# shellcheck disable=SC2034 # for memguard.sh
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

here=$(dirname "$0")

# hungry PERIOD_US BUDGET...: each core has a hog and its BUDGET, in events.
hungry() {
	set_to control "period_us $1"
	shift
	set_to limit "events $*"
	for cpu in 0 1 2 3; do
		"$here/hog" steady $cpu &
		pids="$pids $!"
	done
	figures_over "${HOLD:-2}000"
	stop_traffic
	STATS=/tmp/stats
	cpu=0
	for budget; do
		periods=$(stat $cpu periods)
		largest=$(stat $cpu used_max read)
		over=$(stat $cpu over_periods read)
		missed=$(stat $cpu missed_periods)
		throttled=$(stat $cpu throttled_periods)
		echo "# CPU $cpu: budget $budget; $periods periods, $(per_period $cpu) hundredths each, largest $largest, $over over, $missed missed, $throttled throttled"
		check "core $cpu has its $budget events a period" \
			"within $(per_period $cpu) $budget""00 1" 0 yes
		check "  all of them in each period that it was throttled in" \
			"is $(stat $cpu used read) -ge $(((throttled - 1) * budget))" 0 yes
		check "  at most 2 more in a period" "is $largest -le $((budget + 2))" 0 yes
		check "  few periods above it" "is $((over * 100)) -le $periods" 0 yes
		check "  and few missed" "is $((missed * 100)) -le $periods" 0 yes
		cpu=$((cpu + 1))
	done
	STATS=
}

echo "# $(uname -rv)"
load
echo "# periods of 1 ms"
hungry 1000 5 20 50 100
echo "# periods of 100 us"
hungry 100 2 3 4 5
check "unloads" "unload" 0 ""
finish
