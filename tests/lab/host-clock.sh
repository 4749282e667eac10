#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The lab's own emulator, and its counted clock, on which the CPUs run at the same time.
# shellcheck source=tests/lab/check.sh
. "$(dirname "$0")/check.sh"

memwarden=${MEMWARDEN:-memwarden}
work=$(mktemp -d)
trap 'rm -rf "$work" "$said"' EXIT

lab() {
	"$memwarden" lab run --guest none --with target/lab/tests/lab "$@"
}

check "the emulator is built" "$memwarden lab qemu --json" 0 '"patches": \['
check "  and cached" "$memwarden lab qemu --json" 0 '"cached": true'

# One boot: the time of four busy CPUs, round trips between CPUs, and each PMU's own count.
cat >"$work/clock.sh" <<'EOF'
/host/lab/shares 40 u s u u
/host/lab/clock busy 4 100
/host/lab/clock late
/host/lab/clock ping
/host/lab/clock sample 0x11 50000 100
cat /proc/interrupts | grep -E 'arch_timer|IPI'
cat /proc/uptime; head -c 8 /dev/urandom | hexdump
EOF
boot() { lab --with "$work/clock.sh" -- sh /host/clock.sh >"$work/$1"; }
check "four CPUs boot" "boot first" 0 ''
check "  each busy CPU gets all of its time" \
	"grep -c '^CPU [0-3] ([us]): \(9[0-9]\|100\)\.' $work/first" 0 '^4$'
check "  and executes an instruction a ns" \
	"grep -c '^cpu[0-3]: \(0\.99\|1\.00\)[0-9] instructions a ns' $work/first" 0 '^4$'
check "1 ms wake-ups beside busy CPUs: none missed" \
	"grep -c '^cpu[0-3]: .* us late, .* us at most, 0 of 500 missed' $work/first" 0 '^4$'
check "two CPUs that wait for each other: a round trip takes less than two rounds" \
	"cat $work/first" 0 '^spinning: 1[0-9][0-9][0-9] ns a round trip'
check "each CPU's PMU samples its own cycles" \
	"grep -Ec '^cpu[0-3]: [0-9]+ samples of (19[0-9]{2}|[2-9][0-9]{3}) whole periods, [01] missed, 0 other' $work/first" \
	0 '^4$'
# Some CPUs are idle, or do not exist.
check "an idle CPU takes no time from busy ones" "lab -- /host/lab/shares 40 - u s" 0 '^CPU 2 .s.: (9[0-9]|100)'
check "  nor with three CPUs" "lab --cpus 3 -- /host/lab/shares 40 u s u" 0 '^CPU 2'
check "  nor with two CPUs" "lab --cpus 2 -- /host/lab/shares 40 u s" 0 '^CPU 1'
check "two runs print the same" "boot second && cmp $work/first $work/second" 0 '!.'
finish
