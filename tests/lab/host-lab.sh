#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The lab itself, tried from the host: what the guest has, what comes back, and
# that a kernel that complains fails the run.
# shellcheck source=tests/lab/check.sh
. "$(dirname "$0")/check.sh"

memwarden=${MEMWARDEN:-memwarden}
work=$(mktemp -d)
trap 'rm -rf "$work" "$said"' EXIT

# Most of it needs no memwarden in the guest, and a boot without is sooner up.
lab() { "$memwarden" lab run --guest none "$@"; }

# One boot for all that is read from a healthy guest.
cat >"$work/facts.sh" <<'EOF'
echo "release $(uname -r) cpus $(nproc)"
dmesg | grep -o 'armv8_pmuv3 PMU driver, 7 ' | sed 's/^/pmu /'
ls -d /sys/kernel/tracing/events/sched /sys/kernel/debug/sched /sys/fs/cgroup/cgroup.controllers
sysctl kernel.perf_event_max_sample_rate kernel.perf_cpu_time_max_percent
lsmod | grep -o '^memwarden_tick'
modinfo memguard | grep '^filename'
[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo no terminal
printf '%s|' "$@"; echo
echo to the errors >&2
for cpu in 1 2 3; do
	(i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); done) &
done
wait
grep -E 'arch_timer|IPI' /proc/interrupts
cat /proc/uptime; head -c 8 /dev/urandom | hexdump
mkdir -p deep/er; echo content >deep/er/file; ln -s file deep/er/link
exit 7
EOF
first() {
	lab --results "$work/results" --with "$work/facts.sh" -- \
		sh /host/facts.sh 'two  words' "it's" '$HOME' >"$work/first" 2>"$work/first.err"
}
check "an exit code is carried back" first 7 ""
check "Debian's 6.12 with four CPUs" "cat $work/first" 0 "^release 6\.12\..* cpus 4$"
check "a PMU with seven counters" "cat $work/first" 0 "^pmu armv8_pmuv3"
check "tracefs is mounted" "cat $work/first" 0 "^/sys/kernel/tracing/events/sched$"
check "debugfs is mounted" "cat $work/first" 0 "^/sys/kernel/debug/sched$"
check "cgroup2 is mounted" "cat $work/first" 0 "^/sys/fs/cgroup/cgroup.controllers$"
check "perf may sample as often as it likes" "cat $work/first" 0 "max_sample_rate = 1000000$"
check "  and takes all the time it needs" "cat $work/first" 0 "cpu_time_max_percent = 100$"
check "the tick is loaded on the counted clock" "cat $work/first" 0 "^memwarden_tick$"
check "memguard can be loaded" "cat $work/first" 0 "^filename: .*/extra/memguard.ko$"
check "the command sees no terminal" "cat $work/first" 0 "^no terminal$"
check "arguments come through unchanged" "cat $work/first" 0 "^two  words[|]it's[|].HOME[|]$"
check "errors come on the error output" "cat $work/first.err" 0 "^to the errors$"
check "  and not on the output" "cat $work/first" 0 "!to the errors"
check "files are carried back" "cat $work/results/deep/er/file $work/results/deep/er/link" 0 "^content$"
check "  with the console" "cat $work/results/console.log" 0 "Linux version 6\.12"

# Away from here: without --results its files would make an out/ in the checkout.
second() {
	lab --with "$work/facts.sh" -- sh /host/facts.sh 'two  words' "it's" '$HOME' \
		>"$work/second" 2>/dev/null
	diff "$work/first" "$work/second"
}
mkdir "$work/away"
check "two runs on the counted clock print the same" "(cd $work/away && second)" 0 "!."

check "the free clock boots too, without the tick" \
	"lab --clock free --cpus 2 -- sh -c 'nproc; lsmod'" 0 "^2$"
check "a smaller machine is one" \
	"lab --cpus 1 --memory 512M --tick off --json -- nproc" 0 '"stdout": "1'

check "a kernel warning fails the run" \
	"lab -- sh -c 'echo \"<4>WARNING: provoked\" >/dev/kmsg'" \
	1 "the guest's kernel complained: WARNING: provoked;"
check "a kernel panic fails the run" \
	"lab -- sh -c 'echo c >/proc/sysrq-trigger; sleep 9'" 1 "the guest's kernel complained: .*(crash|panic|Internal error|Unable to handle)"
check "a run that takes too long is stopped" \
	"lab --clock free --timeout 20s -- sleep 1000" 1 "still running after 20 s"
check "nothing of it is left running" "pgrep -f '$work'" 1 ""
finish
