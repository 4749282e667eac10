#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# guard serve and top against the module itself. Runs in the guest.
cd /results || exit
. /host/lab/check.sh
. /host/lab/memguard.sh

ip link set lo up
url=http://127.0.0.1:9750

# serve: in the background, until its address answers.
serve() {
	memwarden guard serve --config /tmp/guard.toml >/dev/null 2>/tmp/serve &
	server=$!
	until_is yes "is -n \"\$(wget -q -O - $url/healthz)\""
}

# until_is WORD COMMAND: waits up to some seconds until the command prints the word.
until_is() {
	tries=100
	until [ "$(eval "$2")" = "$1" ] || [ $tries = 0 ]; do
		tries=$((tries - 1))
		usleep 100000
	done
	eval "$2"
}

# budget CPU: events per period.
budget() { sed -n "s/^CPU$1: \([0-9a-z]*\).*/\1/p" $G/limit; }
budgets_and_rt() { echo "$(budget 0) $(budget 1) $(setting rt)"; }

# A core's rate without a budget: an emulated debug kernel may not reach the budget of
# 25 faults per millisecond.
traffic 1 100000
faults=0
for _ in 1 2 3 4 5 6; do
	before=$(sed -n 's/^pgfault //p' /proc/vmstat)
	usleep 1000000
	now=$((($(sed -n 's/^pgfault //p' /proc/vmstat) - before) / 1000))
	[ $now -gt $faults ] && faults=$now
	[ $faults -lt 35 ] || break
done
stop_traffic

cat >/tmp/guard.toml <<-EOF
	event = "page-faults"
	self_test = false
	maxbw = 600
	mb = [200, 100]
	[cpu.3]
	rt = true
EOF
check "serve starts the guard" serve 0 yes
check "and sets the budgets" "until_is '51 25 3' budgets_and_rt" 0 '^51 25 3$'
check "the page says so" "wget -q -O - $url/metrics" 0 '^memwarden_core_budget_events.cpu="1",traffic="read". 25$'
check "guard show and its page agree" "wget -q -O - $url/show.json | grep -A 6 read_budget >/tmp/1; memwarden guard show --json | grep -A 6 read_budget >/tmp/2; cmp /tmp/1 /tmp/2" 0 ''

traffic 1 100000
if [ $faults -ge 35 ]; then
	# The traffic takes its time to begin.
	check "top sees a core held to its budget" \
		"until_is 1 \"memwarden top --once --interval 500ms | grep -cE 'CPU1 +- +97.7 +9[5-9]\\.[0-9] +(9[7-9]|100)\\.'\"" 0 '^1$'
	check "and as JSON" "memwarden top --once --json --interval 100ms" 0 '"throttled_ratio":0\.[0-9]'
else
	skip "top sees a core held to its budget" "this kernel makes $faults faults a millisecond, and the budget is 25"
	skip "and as JSON" "the same"
fi
# Not stop_traffic: that waits for the server too.
# shellcheck disable=SC2086,SC2154
kill $pids

memwarden guard set --cpu 1 --mb 20
check "a budget that another program changed is restored" "until_is 25 'budget 1'" 0 '^25$'
echo 0 >/sys/devices/system/cpu/cpu1/online
usleep 1500000
echo 1 >/sys/devices/system/cpu/cpu1/online
check "a core that went offline and online has its budget" "until_is 25 'budget 1'" 0 '^25$'
memwarden guard stop
check "a guard that another program stopped is started again" "until_is 51 'budget 0 2>/dev/null'" 0 '^51$'

echo 'mb = [0]' >/tmp/guard.toml
kill -HUP $server
until_is 1 "grep -c 'old settings stay' /tmp/serve" >/dev/null
check "a bad file is refused" "cat /tmp/serve" 0 'guard.toml line 1, mb: .*from 1 to 1048576.*the old settings stay'
check "and the old settings stay" "budget 0" 0 '^51$'
printf 'event = "page-faults"\nself_test = false\nmb = [300]\n' >/tmp/guard.toml
kill -HUP $server
check "a valid file is accepted" "until_is 76 'budget 0'" 0 '^76$'
check "a setting that the new file lacks is restored" "until_is '76 max none' budgets_and_rt" 0 '^76 max none$'

kill $server
check "SIGTERM ends it" "wait $server" 0 ''
check "with the guard that it started" "is ! -e /sys/module/memguard" 0 '^yes$'

load
set_to limit '10 11 12 13'
check "serve takes over a guard that is running" serve 0 yes
check "and sets the budgets" "until_is 76 'budget 0'" 0 '^76$'
check "the core that the file doesn't name is left alone" "budget 3" 0 '^13$'
kill $server
check "SIGTERM ends that, too" "wait $server" 0 ''
check "with the guard's previous settings" "budget 0" 0 '^10$'

printf 'event = "armv8"\n' >/tmp/guard.toml
check "a file for another event is refused" "memwarden guard serve --config /tmp/guard.toml" 1 'line 1, event: the guard that is running has page-faults'
check "and changes nothing" "budget 0" 0 '^10$'
unload
check "top without a guard says so" "memwarden top" 1 '^memwarden: no guard is running'
finish
