#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/bad-input.sh: command lines with invalid input, as a table: the command, the
# first line of its output, the exit code. Fails if a command accepts its input, dies
# of a signal, prints nothing, or leaves a file behind. (tests/parse and tests/lab test
# the input of memguard's files.)
set -uo pipefail
cd "$(dirname "$0")/.." || exit
memwarden=$(realpath "${MEMWARDEN:-target/release/memwarden}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit
export MEMWARDEN_RUNTIME_DIR=$folder/run

printf 'nonsense\n' >nonsense.toml
printf 'command = ["cat", [256]]\n' >bytes.toml
printf '{"schema": "memwarden.run/1"' >broken.json
mkdir empty
before=$(ls)

lines=(
	''
	'measure'
	'latency -m 0' 'latency -m 5T' 'latency -m -1' 'latency -m x' 'latency -c 8191' 'latency -c x'
	'latency -i -3' 'latency -p 99' 'latency -r 0' 'latency -r 100' 'latency --mlp 0' 'latency extra'
	'bandwidth -a erase' 'bandwidth -t -1' 'bandwidth -t x' 'bandwidth --mb 0' 'bandwidth --stride 0'
	'bandwidth --bank-mask 0' 'bandwidth --bank-mask xyz' 'bandwidth --interval 0ms' 'bandwidth -c 8191'
	'doctor --now'
	'maps 0' 'maps -1' 'maps x' 'maps 4294967296' 'maps 2147483647' 'maps 1 2' 'maps --pid 1'
	'interfere --victim sleep' 'interfere --aggressors' 'interfere --aggressors bandwidth:erase'
	'interfere --victim-cpu 8191' 'interfere --cpus 3-1' 'interfere --cpus x' 'interfere --guard 0'
	'interfere --guard 100,x' 'interfere --guard 100+fast' 'interfere --repeat 0' 'interfere --hold 5' 'interfere --long-case 5' 'interfere --long-guard 0' 'interfere --period 1' 'interfere --period 5s'
	'interfere --backend kernel' 'interfere --config missing.toml' 'interfere --config nonsense.toml' 'interfere --on moon'
	'periodic --frames 0' 'realtime --frames 1025' 'realtime --on sim:xeon-w3530 --frames 2' 'sim calibrate raspberry-pi-3 --lab missing' 'sim calibrate raspberry-pi-3 --compare-only --lab missing'
	'mmap --flags huge' 'mmap --flags shared,shared' 'mmap --access any' 'mmap --locality 0' 'mmap --locality x' 'mmap --size 0'
	'mmap --size 16K' 'mmap --size 60000G' 'mmap --size -1' 'mmap --outer 0' 'mmap --outer 2^20' 'mmap --counters perf'
	'mmap --platform vax' 'mmap --prefetcher maybe' 'mmap --model-outer 0' 'mmap --compete all' 'mmap --compete-limit 1G'
	'mmap --confine 1G' 'mmap --flush all' 'mmap --repeat 0' 'mmap --seed -1' 'mmap --cpu 8191' 'mmap --dir missing --size 1M'
	'mmap --config nonsense.toml' 'mmap --cpus 2' 'mmap extra' 'mmap --size 1M reclaim' 'mmap compete' 'mmap compete --bytes 1 --words 99'
	'mmap reclaim --hot 1G' 'mmap reclaim --memory 1G' 'mmap reclaim --rounds 0' 'mmap reclaim --repeat 0'
	'mmap reclaim --swap /dev/sda' 'mmap reclaim --kernel own'
	'copy' 'copy latency --engine gpu' 'copy latency --operation from+to' 'copy latency --sizes 0' 'copy latency --max 1M'
	'copy latency --count 0' 'copy latency --load light' 'copy latency --device missing' 'copy latency --device nonsense.toml'
	'copy latency --cpus 2' 'copy latency --machine zcu102' 'copy latency --device null --cpu 8191 --out run'
	'copy bandwidth --operation to_nc' 'copy bandwidth --operations 0' 'copy bandwidth --repeat 0' 'copy bandwidth --high 64'
	'copy bandwidth --quantum-low 1' 'copy bandwidth --config nonsense.toml' 'copy pollution --engine cpu'
	'copy pollution --pairs to:0' 'copy pollution --application doom' 'copy pollution --copy-cpu 1' 'copy pollution --system worst'
	'copy latency --engine all,cpu' 'copy breakeven --apply' 'copy breakeven --apply --device null'
	'copy breakeven --count 1' 'copy breakeven --victim-runs 1' 'copy breakeven --answer all' 'copy breakeven --apply --on lab' 'copy breakeven --victim doom'
	'trace' 'trace copies --ops at' 'trace copies --ops to,to' 'trace copies --for soon' 'trace copies --for 0'
	'trace copies --every 1m' 'trace copies --for 1s -- true' 'trace copies --device missing' 'trace copies --device nonsense.toml'
	'trace copies --cpus 2' 'trace copies --config nonsense.toml' 'trace copies true'
	'guard' 'guard start --event z80 --backend user' 'guard start --event 17 --backend user' 'guard start --period 3'
	'guard start --period 2s' 'guard start --backend kernel' 'guard start --bytes-per-event 0' 'guard start --maxbw 0'
	'guard start --module missing.ko' 'guard set' 'guard set --mb 0' 'guard set --mb -5' 'guard set --mb 1,,2'
	'guard set --mb 100 --weights 1' 'guard set --cpu x --mb 1' 'guard set --mb 100' 'guard mode' 'guard mode --best-effort fair'
	'guard mode --reclaim maybe' 'guard show' 'guard show --xml' 'guard stop' 'guard run --mb 100' 'guard run -- true'
	'guard run --cpus 3-1 --mb 9 -- true' 'guard run --cpus x --mb 9 -- true' 'guard run --cpus 8191 --mb 9 -- true'
	'guard run --cpus 0 --cpu 0 --mb 9 -- true' 'guard run --json -- true' 'guard run --stop-with freezer --mb 9 -- true'
	'guard run --cgroup a --mb 9' 'guard run --cgroup a --mb 0 -- true' 'guard run --cgroup a --mb 9,9 -- true'
	'guard run --cgroup a --weights 1 -- true' 'guard run --cgroup a --percent 9 -- true' 'guard run --cgroup a --write-mb 9 -- true'
	'guard run --cgroup a --cpu 0 --mb 9 -- true' 'guard run --cgroup a --maxbw 9 --mb 9 -- true'
	'guard run --cgroup a --stop-with signal --mb 9 -- true' 'guard run --cgroup a --backend module --mb 9 -- true'
	'guard run --cgroup a --cpus 8191 --mb 9 -- true' 'guard run --cgroup . --mb 9 -- true' 'guard run --cgroup ../a --mb 9 -- true'
	'guard run --cgroup /tmp/a --mb 9 -- true' 'guard run --cgroup a/b/c --mb 9 -- true'
	'guard run --cgroup a --event z80 --mb 9 -- true' 'guard run --cgroup a --event page-faults --mb 3 -- true'
	'guard enter' 'guard enter --cgroup missing -- true'
	'guard calibrate -m 0' 'guard bench' 'guard bench --part alone --timeout 1h'
	'guard bench --part speed' 'guard bench --part alone --faults 0' 'guard bench --part hold --hold 1s'
	'guard bench --part alone --event cycles' 'guard bench --part scaling --event 0x17' 'guard bench --part alone --user-only'
	'guard bench --on lab --event armv8' 'guard bench --on lab:vax' 'guard bench --on lab:raspberry-pi-3 --part pmu'
	'guard user-regulator nonsense'
	'lab' 'lab run' 'lab run --cpus 0 -- true' 'lab run --clock wall -- true' 'lab run --timeout soon -- true'
	'lab run --with missing -- true' 'lab run --package ./x.deb -- true' 'lab shell extra'
	'sim' 'sim platforms extra' 'sim calibrate' 'sim calibrate vax' 'sim calibrate nonsense.toml' 'sim calibrate missing.toml'
	'sim calibrate raspberry-pi-4' 'sim calibrate raspberry-pi-3 --against vax' 'sim calibrate raspberry-pi-3 --against nonsense.toml'
	'sim calibrate raspberry-pi-3 --within 2' 'sim calibrate raspberry-pi-3 --tries 0' 'sim calibrate raspberry-pi-3 --replace'
	'sim calibrate raspberry-pi-3 -o nonsense.toml' 'sim calibrate raspberry-pi-3 -o missing/new'
	'sim calibrate raspberry-pi-3 --compare-only --tries 9' 'sim memories extra' 'sim check ddr1' 'sim check nonsense.toml' 'sim check missing.toml' 'sim check --commands 0'
	'sim generate' 'sim generate --pattern zigzag --count 1 -o new' 'sim generate --pattern stream --count 0 -o new'
	'sim generate --pattern stream --count 1 --write-share 2 -o new' 'sim generate --pattern stream --count 1 --memory ddr1 -o new'
	'sim generate --pattern stream --count 1 -o empty --replace' 'sim generate --pattern stream --count 1 -o nonsense.toml'
	'sim replay' 'sim replay missing' 'sim replay nonsense.toml' 'sim replay empty' 'sim replay nonsense.toml --page-policy shut'
	'sim record' 'sim record --platform raspberry-pi-3 --workload latency@0' 'sim record --platform vax --workload latency@0 -o new'
	'sim record --platform raspberry-pi-3 --workload latency -o new' 'sim record --platform raspberry-pi-3 --workload trace:missing@0 -o new'
	'interfere --aggressors trace:empty' 'realtime --load trace:empty' 'interfere --on lab --victim trace:empty'
	'guard events no-such-processor'
	'plan --platform xeon-6426y --task t:frame=1M,period=9ms,deadline=9ms@0 --load latency@1 --verify lab'
	'plan' 'plan --platform raspberry-pi-3 --task t --load latency@1' 'plan --platform raspberry-pi-3 --task t:frame=1M,period=9ms,deadline=9ms@0 --load latency'
	$'realtime --on-miss caf\xe9' $'trace copies --device caf\xe9' $'trace copies --config caf\xe9 -- caf\xe9'
	$'guard run --cgroup ../caf\xe9 --mb 9 -- true' $'guard run --cgroup a --event caf\xe9 --mb 9 -- true'
	'trace copies --config bytes.toml'
	'report' 'report missing' 'report empty' 'report --compare empty' 'report --compare missing empty'
)

bad=0
printf '| %-52s | %-110s | %s |\n' 'typed' 'answer (first line)' 'exit'
for line in "${lines[@]}"; do
	# shellcheck disable=SC2086
	answer=$(timeout 60 "$memwarden" $line 2>&1 >/dev/null </dev/null)
	code=$?
	first=$(grep -m 1 . <<<"$answer")
	# A byte that is no text is shown as a question mark.
	shown=$(LC_ALL=C tr '\200-\377' '?' <<<"$line")
	printf '| %-52s | %-110s | %s |\n' "$shown" "${first:0:110}" $code
	if [ $code = 0 ] || [ $code -ge 124 ] || [ -z "$first" ]; then
		echo "not refused as it should be: '$line'"
		bad=1
	fi
done
left=$(ls)
if [ "$left" != "$before" ] && [ "$left" != "$before"$'\nrun' ]; then
	echo "left behind: $left"
	bad=1
fi
exit $bad
