# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
# device_tests MODULE: all tests of a memory device that a shell can run, and
# its behaviour as TAP. Sourced by the tests of both devices, after check.sh.

# fresh MODULE PARAMETERS...: unloads it and loads it again.
fresh() {
	rmmod "$1" 2>/dev/null
	modprobe "$@"
}

# Each line of the C program's TAP becomes a check of this one.
behaviour() {
	/host/lab/mymem-behaviour "$@" >/tmp/behaviour 2>&1
	while read -r line; do
		case $line in
		'ok '*) check "$1: ${line#ok * - }" true 0 '' ;;
		'not ok '*) check "$1: ${line#not ok * - }" false 0 '' ;;
		'1..'* | '#'*) ;;
		*) check "$1: $line" false 0 '' ;;
		esac
	done </tmp/behaviour
	check "$1 $2 $3 ran to its end" "tail -n 1 /tmp/behaviour" 0 '^1\.\.[0-9]+$'
}

device_tests() {
	module=$1 device=/dev/$1
	check "$module loads" "fresh $module" 0 ''
	behaviour "$device" 524288 strict
	fresh "$module" strict=0
	behaviour "$device" 524288 lenient
	# No multiple of a page.
	fresh "$module" size=65544
	behaviour "$device" 65544 strict

	check "it refuses a size of 0" "rmmod $module; modprobe $module size=0" 1 'Invalid argument|can.t load'
	check "and prints the allowed values" "dmesg | tail -n 5" 0 "$module: size=0: give 1 to 1073741824 bytes"
	check "it refuses too large a size" "modprobe $module size=1073741825" 1 ''
	check "and a size that this machine does not have" "modprobe $module size=1073741824" 1 ''
	check "without a message of the allocator" "dmesg | tail -n 5" 0 "$module: size=1073741824: not enough memory on this machine"
	check "a failed load leaves no device" "test ! -e $device" 0 ''
	check "and no module" "grep -w $module /proc/modules" 1 ''
	check "one byte is enough" "modprobe $module size=1 && printf x >$device && dd if=$device bs=1 count=1 2>/dev/null" 0 '^x$'

	fresh "$module"
	exec 7<"$device"
	check "an open device keeps the module loaded" "rmmod $module" 1 ''
	check "two processes may open it" "exec 8<$device" 0 ''
	exec 7<&- 8<&-
	check "when it is closed the module can be unloaded" "rmmod $module" 0 ''
	modprobe "$module" exclusive=1
	exec 7<"$device"
	check "exclusive: the second open is refused" "cat $device" 1 'busy'
	exec 7<&-
	check "and the next open is not" "dd if=$device bs=1 count=1" 0 ''
	check "it loads and unloads $CYCLES times" \
		"for i in \$(seq $CYCLES); do rmmod $module && modprobe $module || exit 1; done" 0 ''
	check "the kernel logs no warning" "dmesg | grep -E '(BUG|WARNING|UBSAN).*$module'" 1 ''
}
