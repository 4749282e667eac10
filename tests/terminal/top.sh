#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/terminal/top.sh: `memwarden top` in a real terminal (tmux), with the
# guard that counts nothing. Prints TAP; skips when there is no tmux.
# MEMWARDEN: the program.
cd "$(dirname "$0")/../.." || exit
. tests/lab/check.sh

memwarden=$(realpath "${MEMWARDEN:-target/release/memwarden}")

if ! command -v tmux >/dev/null; then
	skip "top in a terminal" "there is no tmux"
	finish
fi

# A separate server for each, since a socket is not free at once.
folder=$(mktemp -d)
number=0
mux() { tmux -f /dev/null -S "$folder/tmux$number" "$@" 2>/dev/null; }
trap 'mux kill-server; rm -rf "$folder" "$said"' EXIT

# shell: a fresh shell in a terminal of 100 columns and 24 lines.
shell() {
	mux kill-server
	number=$((number + 1))
	LANG=C.UTF-8 LC_ALL=C.UTF-8 PS1='ready$ ' mux -u new-session -d -x 100 -y 24 "env -u NO_COLOR $1 sh"
	shows 'ready\$' >/dev/null
}

screen() { mux capture-pane -p -t 0; }
# Includes the lines that have scrolled off the top.
history() { mux capture-pane -p -S - -t 0; }
keys() { mux send-keys -t 0 "$@"; }

# shows PATTERN: waits until the screen shows it, and prints the screen.
shows() {
	tries=200
	until screen | grep -Eq -e "$1"; do
		tries=$((tries - 1))
		if [ $tries = 0 ]; then
			screen
			return 1
		fi
		sleep 0.05
	done
	screen
}

# types KEYS PATTERN
types() {
	keys "$1"
	shows "$2"
}

top="$memwarden top --backend null --interval 100ms"

# The terminal's settings, before and after.
modes() {
	keys "stty -g > $folder/$1; echo $1 kept" Enter
	shows "^$1 kept" >/dev/null
}

shell
modes before
keys "echo line above" Enter
keys "$top; echo code \$?" Enter
check "top fills the screen" "shows 'memwarden top +null: null, 64 B'" 0 'budget +MB/s +used'
check "the first core is selected" screen 0 '^>CPU0 +max'
check "the figures since the reset are beside the last second's" screen 0 'worst +throttled +since reset: mean, worst'
check "a key moves the selection" "[ $(nproc) = 1 ] || types j '^>CPU[1-9]'" 0 ''
keys k
check "changing a missing budget by a tenth is refused with a message" "types + 'has no budget'" 0 '^. CPU0 has no budget: type one with e'
check "top asks for a budget" "types e 'budget in MB/s'" 0 'Enter sets it'
keys 1000
check "a typed budget is set" "types Enter 'set: cpu0 mb 1000'" 0 '^>CPU0 +1000.0'
check "and a tenth more" "types + '1100.0'" 0 'set: cpu0 18022'
keys e
keys 0
check "a budget of 0 is refused" "types Enter 'budget .0. in'" 0 '^. budget .0. in'
check "best effort changes" "types m 'best effort spare'" 0 ''
check "reclaim changes" "types R 'reclaim on'" 0 ''
check "a core is exempted" "types r 'CPU0 rt'" 0 'never throttled'
check "a budget is removed" "types u 'cpu0 max'" 0 '^>CPU0 rt +max'
check "statistics are reset" "types z 'statistics reset'" 0 ''
check "help lists the keys" "types '?' 'ends; the guard stays'" 0 'a tenth more or less'
keys x
check "and fit in 80 columns" "mux resize-window -t 0 -x 80 -y 24; shows 'throttled since reset: mean, worst$'" 0 '^>CPU0 rt +max'
check "a smaller terminal is drawn" "mux resize-window -t 0 -x 40 -y 10; shows '^>CPU0 rt +[^ ]+ +[^ ]+ +[^ ]+$'" 0 ''
check "and a larger one" "mux resize-window -t 0 -x 100 -y 24; shows '^>CPU0 rt .{60}'" 0 ''
check "q ends it" "types q '^code [0-9]'" 0 '^code 0'
check "the previous screen is restored" history 0 '^line above'
check "and top's screen is gone" history 0 '!^.CPU0 '
modes q
check "and the terminal's settings" "cmp $folder/before $folder/q" 0 ''

for end in TERM:143 INT:130 HUP:129; do
	signal=${end%:*}
	shell
	modes "before-$signal"
	keys "$top; echo code \$?" Enter
	shows '^>CPU0' >/dev/null
	kill -"$signal" "$(pgrep -P "$(mux display-message -p -t 0 '#{pane_pid}')")"
	check "SIG$signal ends it, as its exit code says" "shows '^code ${end#*:}'" 0 ''
	modes "after-$signal"
	check "SIG$signal leaves the terminal as it was" "cmp $folder/before-$signal $folder/after-$signal" 0 ''
done

shell 'NO_COLOR=1'
keys "$top" Enter
shows '^>CPU0' >/dev/null
check "NO_COLOR: no colours" "mux capture-pane -e -p -t 0" 0 '!38;5'
keys q
shell
keys "$top" Enter
shows '^>CPU0' >/dev/null
check "otherwise colours" "mux capture-pane -e -p -t 0" 0 '38;5'
keys q

shell
keys "stty rows 0 columns 0; $top" Enter
check "a terminal without a size has 80 columns" "shows '^>CPU0'" 0 'throttled since reset: mean, worst$'
check "and 24 lines" "screen | sed -n 24p" 0 'q quit'
keys q
shell TERM=dumb
keys "$top --count 1; echo code \$?" Enter
check "TERM=dumb: lines instead of a screen" "shows '^code [0-9]'" 0 '^ +0\.[0-9]{3} +CPU0 +- +max +0\.0'

check "in a pipe it prints lines" "$top --count 2 | cat" 0 '^ +0\.[0-9]{3} +CPU0 +- +max +0\.0'
check "a closed pipe ends it" "$top | head -n 1" 0 't_s +core'
check "--once --json prints one object" "$top --once --json | wc -l" 0 '^1$'
check "an invalid interval is refused" "$memwarden top --interval 5x" 2 'unknown unit \(a time is seconds, or has a unit'
check "an interval of 0 is refused" "$memwarden top --interval 1us" 2 'give 20 ms to 3600 s'
check "--count 0 is refused" "$memwarden top --count 0" 2 ''
if [ -e /sys/module/memguard ]; then
	skip "without a guard it says so" "one is running"
else
	check "without a guard it says so" "$memwarden top" 1 '^memwarden: no guard is running: .memwarden guard start. starts one$'
fi
finish
