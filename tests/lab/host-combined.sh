#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# One budget over refills and write-backs, on a platform's modelled memory: a reader, two
# writers and a copier are each held to it, whatever they do.
# shellcheck source=tests/lab/check.sh
. "$(dirname "$0")/check.sh"

memwarden=${MEMWARDEN:-memwarden}
work=$(mktemp -d)
trap 'rm -rf "$work" "$said"' EXIT

cat >"$work/loads.sh" <<'EOF2'
for load in "0 read" "1 write" "2 copy" "3 write"; do
	memwarden bandwidth -m 16M -c ${load% *} -a ${load#* } -t 2 2>&1 | sed -n "s/.*B\/W = /${load#* }: /p" &
done
sleep 1.8
memwarden guard show | sed -n 's/^ *\(CPU[0-3]\)  *200.0  *[0-9]*  *[0-9.]*  *\([0-9.]*\) .*/last second: \1 \2/p'
wait
EOF2
cat >"$work/combined.sh" <<'EOF2'
memwarden guard start --combined --cpus 3 2>&1 && memwarden guard show && memwarden guard stop
echo the module
memwarden guard run --no-self-test --backend module --combined --cpus 0-3 --mb 200 -- sh /host/loads.sh 2>&1
echo in user space
memwarden guard run --no-self-test --backend user --combined --cpus 0-3 --mb 200 -- sh /host/loads.sh 2>&1
echo no write-backs
memwarden guard start --combined --cpus 3 --event 0x17 2>&1
echo one event of both
memwarden guard start --combined --cpus 3 --event 0x19 2>&1 && memwarden guard stop
echo its loads
memwarden guard run --no-self-test --backend module --combined --event 0x19 --cpus 0-3 --mb 200 -- sh /host/loads.sh 2>&1
echo a sum
for backend in module user; do
	memwarden guard start --backend $backend --combined --cpus 3 --event 0x60+0x61 2>&1 && memwarden guard show && memwarden guard stop
	memwarden guard start --backend $backend --cpus 3 --event 0x60+0x61 --write-event 0x18 2>&1
done
modprobe memguard g_read_counter_id=0x60+0x61 g_write_counter_id=0x18 || dmesg | tail -n 1
modprobe memguard g_read_counter_id=0x60+ || dmesg | tail -n 1
echo a group
memwarden guard run --cgroup batch --event 0x60+0x61 --mb 100 -- memwarden bandwidth -m 16M -c 2 -a write -t 1 2>&1
EOF2
combined() {
	"$memwarden" lab run --platform raspberry-pi-3 --with "$work/combined.sh" --with "$work/loads.sh" \
		-- sh /host/combined.sh >"$work/said" 2>&1
	code=$?
	sed 's/^/# /' "$work/said"
	return $code
}

# part FROM: what was said from that line to the next title.
part() {
	sed -n "/^$1$/,\$p" "$work/said" | sed -n '1!{/^the module$\|^in user space$\|^no write-backs$\|^one event of both$\|^its loads$\|^a sum$\|^a group$/q;};p'
}

combined
check "the guard starts with one budget over both" "sed '/^the module$/q' $work/said | grep -c 'lines that are fetched and written back'" 0 '^1$'
check "  it counts a line that is written twice" \
	"grep -m 1 'CPU3: 67108864 bytes written' $work/said" 0 'written, 13[2-9][0-9]{6} counted as lines that are fetched and written back'
check "  one that is read once" "grep -m 1 'CPU3: 67108864 bytes moved' $work/said" 0 'moved, (6[4-9]|70)[0-9]{6} counted'
check "  and says so" "cat $work/said" 0 'event cortex-a53 .*write-backs \(0x18\) count in the same budget'
check "  as guard show does" "cat $work/said" 0 'event cortex-a53 of 64 bytes with write event 0x18 in one budget'
# A run of two seconds begins and ends with what uses no budget.
for how in "the module" "in user space" "its loads"; do
	for cpu in 0 1 2 3; do
		check "$how: CPU$cpu is held" "part '$how'" 0 "CPU$cpu (17[0-9]|1[89][0-9]|20[01])\.[0-9] of 200\.0 MB/s"
	done
	check "  in a second of loads each has its budget, within 1 %" \
		"part '$how' | grep -E '^last second: CPU[0-3] (19[89]|20[01])\.[0-9]$' | sort -u | wc -l; part '$how' | grep '^last second'" 0 '^4$'
	check "  which is what it says" "part '$how'" 0 '!NOT held'
done
check "an event of reads alone is refused" "part 'no write-backs'" 0 \
	'event 0x17 counted [0-9]+ bytes while 67108864 were written, each of which is fetched and written back \(-[0-9]+ %\)'
check "one that counts both is taken" "part 'one event of both'" 0 '^guard: module, event 0x19 \(64 bytes, reads and write-backs together\)'
# Reads and write-backs have an event each here, and their sum is what one event counts above.
check "the sum of two events is taken by both regulators" "part 'a sum' | grep -c '^guard: .*, event 0x60+0x61 (64 bytes'" 0 '^2$'
check "  they count a line that is read once" "part 'a sum' | grep -cE '^CPU3: 67108864 bytes moved, (6[4-9]|70)[0-9]{6} counted'" 0 '^2$'
check "  and one that is written twice" "part 'a sum' | grep -cE '^CPU3: 67108864 bytes written, 13[2-9][0-9]{6} counted'" 0 '^2$'
check "  guard show names both codes" "part 'a sum'" 0 '^(module|user): event 0x60\+0x61 of 64 bytes, reads and write-backs in one budget'
check "  there is no third event" "part 'a sum' | grep -c '^memwarden: event .* leaves no counter for --write-event'" 0 '^2$'
check "  also for the module's parameters" "part 'a sum'" 0 'memguard: CPU0: event raw is the sum of two, which leaves no counter for a write event'
check "  and half a sum is refused" "part 'a sum'" 0 'g_read_counter_id=0x60\+: give a raw event code'
check "a group has a budget of such a sum" "part 'a group'" 0 '/sys/fs/cgroup/batch (9[5-9]|10[0-2])\.[0-9] of 100\.0 MB/s.*; held$'
finish
