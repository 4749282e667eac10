# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
# check "what" "command" exit-code pattern: runs the command in this shell and
# prints one TAP line. The output (standard and errors) must match the extended
# regular expression; one that begins with ! must match nowhere; an empty one
# matches all. finish prints the plan and exits 1 if a check failed.

checks=0 failures=0 said=$(mktemp)

check() {
	checks=$((checks + 1))
	eval "$2" >"$said" 2>&1
	code=$?
	reason=
	[ "$code" = "$3" ] || reason="exit code $code instead of $3"
	case "$4" in
	'') ;;
	!*) grep -Eq -e "${4#!}" "$said" && reason="$reason; the output matches ${4#!}" ;;
	*) grep -Eq -e "$4" "$said" || reason="$reason; the output does not match $4" ;;
	esac
	if [ -z "$reason" ]; then
		echo "ok $checks - $1"
	else
		failures=$((failures + 1))
		echo "not ok $checks - $1"
		echo "# $2: $reason"
		head -n 5 "$said" | sed 's/^/# /'
	fi
}

# Lists the allocations that leaked since the boot, which itself leaks none, on a kernel with kmemleak. It needs two
# scans, each of which costs the emulator as much as seconds of other work: ask at the end of a test only.
leaks() {
	echo scan >/sys/kernel/debug/kmemleak && sleep 6 && echo scan >/sys/kernel/debug/kmemleak &&
		cat /sys/kernel/debug/kmemleak
}

# Unbinds the DMA engines that are there, such as a platform's, so that all channels are swdma's.
without_other_engines() {
	for channel in /sys/class/dma/*; do
		device=$(readlink -f "$channel/device")
		[ ! -e "$device/driver" ] || basename "$device" >"$device/driver/unbind"
	done
}

# at_most N COUNT: the smaller of both, for operations that take a hundred times as long as the
# others of a test.
at_most() { if [ "$2" -lt "$1" ]; then echo "$2"; else echo "$1"; fi; }

# skip "what" "reason"
skip() {
	checks=$((checks + 1))
	echo "ok $checks - $1 # SKIP $2"
}

finish() {
	echo "1..$checks"
	exit $((failures != 0))
}
