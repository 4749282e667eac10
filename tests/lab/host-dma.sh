#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The DMA engine of a platform's machine: Debian's kernel has its driver, and its transfers take the memory's time.
# shellcheck source=tests/lab/check.sh
. "$(dirname "$0")/check.sh"

memwarden=${MEMWARDEN:-memwarden}
work=$(mktemp -d)
trap 'rm -rf "$work" "$said"' EXIT

cat >"$work/dma.sh" <<'EOS'
echo "channels: $(ls /sys/class/dma | wc -l)"
# Each engine's copies to the kernel and back are compared with the original.
memwarden copy latency --no-compare --engine cpu,dma-exclusive --operation to_nc --sizes 64,4K,64K --repeat 10 \
	--out /tmp/latency >/tmp/said 2>&1 || cat /tmp/said
awk -F '"' '/time_ns/ { split($3, fields, ","); print $2 ": " fields[7] }' /tmp/latency/samples.csv
modprobe cftu compare=0 && dmesg | grep -o 'cftu: .* channels of .*'
# Lines from memory on CPU 3, which copies nothing, while an engine copies for CPU 0.
echo "refills: $(/host/lab/refills read 8 2 | grep 0x17)"
interrupts() { grep -m 1 'DMA IRQ' /proc/interrupts | awk '{ print $2 }'; }
before=$(interrupts)
memwarden copy latency --engine dma-exclusive --operation to_nc --sizes 64K --repeat 100000 >/dev/null 2>&1 &
until [ "$(interrupts)" != "$before" ]; do sleep 0.01; done
before=$(interrupts)
echo "beside copies: $(taskset 8 /host/lab/refills read 8 2 | grep 0x17)"
echo "interrupts beside: $(($(interrupts) - before))"
average() { memwarden latency -m 16M -c 3 -i 1 2>&1 | grep -o '[0-9.]* ns'; }
echo "victim beside copies: $(average)"
kill -KILL $!
wait
echo "victim alone: $(average)"
EOS
boot() { "$memwarden" lab run --with target/lab/tests/lab --with "$work/dma.sh" "$@" -- sh /host/dma.sh; }

# median CASE: the median of its times, ns.
median() { sed -n "s/^to_nc, $1: //p" "$work/first" | sort -n | sed -n 5p; }

# ratio CASE CASE LOW HIGH: the first case's median is LOW to HIGH times the second one's.
ratio() {
	awk -v a="$(median "$1")" -v b="$(median "$2")" -v low="$3" -v high="$4" \
		'BEGIN { print a, b, a / b; exit !(a > low * b && a < high * b) }'
}

# counted WHEN: the count of read lines is right within half a percent.
counted() {
	sed -n "s/^$1: .*0x17: \([0-9]*\) of \([0-9]*\) lines/\1 \2/p" "$work/first" |
		awk '{ print; off = $1 / $2 - 1 } END { exit !(NR && off * off < 0.000025) }'
}

check "a platform's machine has a DMA engine" "boot --platform raspberry-pi-3 >$work/first; cat $work/first" 0 '^channels: 15$'
check "  with the kernel's own driver, whose transfers cftu does not compare" "cat $work/first" 0 \
	'cftu: 4 channels of bcm2835-dma, aligned to 64 bytes, can.t pause; up to [0-9]+ bytes are polled for$'
check "  longer transfers take more time" "ratio 'dma-exclusive, 65536 bytes' 'dma-exclusive, 64 bytes' 10 30" 0 ''
check "  the CPU is faster for short copies" "ratio 'dma-exclusive, 64 bytes' 'cpu, 64 bytes' 8 16" 0 ''
check "  and less so for long ones" "ratio 'dma-exclusive, 65536 bytes' 'cpu, 65536 bytes' 1.5 2.3" 0 ''
check "  its transfers end with interrupts" "cat $work/first" 0 '^interrupts beside: [0-9]{3,}$'
check "a core counts the lines that it reads" "counted refills" 0 ''
check "  and not the engine's" "counted 'beside copies'" 0 ''
check "a victim on another core is slower beside the engine" \
	"sed -n 's/^victim.*: \(.*\) ns/\1/p' $work/first | tr '\n' ' ' | awk '{ print; exit !(NF == 2 && \$1 > 1.15 * \$2) }'" 0 ''
check "two boots print the same" "boot --platform raspberry-pi-3 >$work/second && cmp $work/first $work/second" 0 '!.'

sed 's/^coherent = false/coherent = true/' crates/machines/machines/raspberry-pi-3.toml >"$work/coherent.toml"
sed '/^\[machine.dma\]/,/^coherent/d' crates/machines/machines/raspberry-pi-3.toml >"$work/without.toml"
engine() {
	"$memwarden" lab run --platform "$work/$1.toml" -- sh -c '
		memwarden copy latency --engine dma-shared --operation from --sizes 67,4097 --repeat 3 2>&1 && echo copied
		modprobe cftu; dmesg | tail -n 1' >"$work/$1"
}
check "a coherent engine copies any bytes" "engine coherent; cat $work/coherent" 0 '^copied$'
check "  since the device tree declares it coherent" "cat $work/coherent" 0 'bcm2835-dma, aligned to 1 bytes'
check "a platform without an engine uses swdma" "engine without; cat $work/without" 0 "The channels are swdma's"
finish
