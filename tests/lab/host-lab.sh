#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Tests the lab itself, from the host: the guest's environment, the files that are copied back,
# and that a kernel warning fails the run.
# shellcheck source=tests/lab/check.sh
. "$(dirname "$0")/check.sh"

memwarden=${MEMWARDEN:-memwarden}
work=$(mktemp -d)
trap 'rm -rf "$work" "$said"' EXIT

# Most tests need no memwarden in the guest, and a boot without it is faster.
lab() { "$memwarden" lab run --guest none "$@"; }

# One boot for all tests of a healthy guest.
cat >"$work/facts.sh" <<'EOF'
echo "release $(uname -r) cpus $(nproc)"
dmesg | grep -o 'armv8_pmuv3 PMU driver, 7 ' | sed 's/^/pmu /'
ls -d /sys/kernel/tracing/events/sched /sys/kernel/debug/sched /sys/fs/cgroup/cgroup.controllers
sysctl kernel.perf_event_max_sample_rate kernel.perf_cpu_time_max_percent
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
		sh /host/facts.sh 'two  words' "it's" '$HOME' "$(printf 'caf\351')" >"$work/first" 2>"$work/first.err"
}
check "the exit code is returned" first 7 ""
check "Debian's 6.12 with four CPUs" "cat $work/first" 0 "^release 6\.12\..* cpus 4$"
check "a PMU with seven counters" "cat $work/first" 0 "^pmu armv8_pmuv3"
check "tracefs is mounted" "cat $work/first" 0 "^/sys/kernel/tracing/events/sched$"
check "debugfs is mounted" "cat $work/first" 0 "^/sys/kernel/debug/sched$"
check "cgroup2 is mounted" "cat $work/first" 0 "^/sys/fs/cgroup/cgroup.controllers$"
check "perf's sampling rate is not limited" "cat $work/first" 0 "max_sample_rate = 1000000$"
check "  nor its time" "cat $work/first" 0 "cpu_time_max_percent = 100$"
check "memguard can be loaded" "cat $work/first" 0 "^filename: .*/extra/memguard.ko$"
check "the command has no terminal" "cat $work/first" 0 "^no terminal$"
check "arguments come through unchanged" "cat $work/first" 0 "^two  words[|]it's[|].HOME[|]caf"
check "  byte for byte" "tr '\\351' X <$work/first" 0 "^two  words.*[|]cafX[|]$"
check "errors go to standard error" "cat $work/first.err" 0 "^to the errors$"
check "  and not to standard output" "cat $work/first" 0 "!to the errors"
check "files are copied back" "cat $work/results/deep/er/file $work/results/deep/er/link" 0 "^content$"
check "  with the console" "cat $work/results/console.log" 0 "Linux version 6\.12"

# In another folder: without --results its files would make an out/ in the checkout.
second() {
	lab --with "$work/facts.sh" -- sh /host/facts.sh 'two  words' "it's" '$HOME' "$(printf 'caf\351')" \
		>"$work/second" 2>/dev/null
	diff "$work/first" "$work/second"
}
mkdir "$work/away"
check "two runs on the counted clock print the same" "(cd $work/away && second)" 0 "!."

check "the free clock boots too" "lab --clock free --cpus 2 -- nproc" 0 "^2$"
check "a smaller machine can be chosen" \
	"lab --cpus 1 --memory 512M --json -- nproc" 0 '"stdout": "1'

# The other machine, with a kernel that ./test builds anyway.
cat >"$work/zcu102.sh" <<'EOF'
echo "cpus $(nproc) channels $(ls -d /sys/class/dma/dma*chan0 | wc -l)"
free -m | sed -n 's/^Mem: *\([0-9]*\).*/memory \1/p'
dmesg | grep -o 'no irqs for PMU, sampling events not supported'
irq() { sed -n 's/^ *\([0-9]*\):.*zynqmp-dma.*/\1/p' /proc/interrupts | sed -n "$1p"; }
interrupts() {
	echo "interrupts of $1:" $(sed -n "s/^ *$(irq "$1"):\(.*\)GIC.*/\1/p" /proc/interrupts)
}
echo 4 >"/proc/irq/$(irq 16)/smp_affinity"
for channel in 0 15; do
	modprobe dmatest channel=dma${channel}chan0 iterations=10 run=1
	# Its parameter wait is no way to wait: it has come back after 8 of 10.
	while grep -q Y /sys/module/dmatest/parameters/run; do sleep 0.1; done
	rmmod dmatest
done
# dmatest's threads have names that may be cut off.
dmesg | sed -n 's/.*dmatest: \(dma[0-9]*chan0\)-copy.*summary \(.*failures\).*/\1 \2/p'
interrupts 1
interrupts 16
modprobe memguard g_hw_type=cycles || echo "without interrupts: $?"
modprobe memguard g_hw_type=page-faults && lsmod | grep -o '^memguard'
echo "days since 1970: $(($(date +%s) / 86400))"
echo to the errors >&2
mkdir deep
head -c 100000 /dev/urandom >deep/file
sha256sum deep/file >sum
exit 7
EOF
zcu102() {
	lab --machine zcu102 --kernel own-debug --memory 2G --timeout 10m \
		--results "$work/zcu102" --with "$work/zcu102.sh" -- sh /host/zcu102.sh \
		>"$work/third" 2>"$work/third.err"
	code=$?
	tail -n 3 "$work/third.err"
	return $code
}
check "a zcu102 returns the exit code" zcu102 7 ""
check "  has four CPUs and sixteen DMA channels" "cat $work/third" 0 "^cpus 4 channels 16$"
check "  and the chosen memory" "cat $work/third" 0 "^memory (1[1-9]|20)[0-9][0-9]$"
check "  says that its PMU takes no samples" "cat $work/third" 0 "^no irqs for PMU"
check "  copies on the first channel" "cat $work/third" 0 "^dma0chan0 10 tests, 0 failures$"
check "    and on the last" "cat $work/third" 0 "^dma15chan0 10 tests, 0 failures$"
check "  interrupts CPU 0" "cat $work/third" 0 "^interrupts of 1: [1-9][0-9]* 0 0 0$"
check "    or the chosen CPU" "cat $work/third" 0 "^interrupts of 16: 0 0 [1-9][0-9]* 0$"
check "  loads memguard" "cat $work/third" 0 "^memguard$"
check "    but not with an event that never interrupts" "cat $work/third" 0 "^without interrupts: [1-9]"
check "  has the date: on the counted clock the first of 2026" "cat $work/third" 0 "^days since 1970: 20454$"
check "  keeps standard error separate" "cat $work/third.err" 0 "^to the errors$"
check "  and copies files back completely" "(cd $work/zcu102 && sha256sum -c sum)" 0 "^deep/file: OK$"

check "a kernel warning fails the run" \
	"lab -- sh -c 'echo \"<4>WARNING: provoked\" >/dev/kmsg'" \
	1 "the guest's kernel complained: WARNING: provoked;"
check "a kernel panic fails the run" \
	"lab -- sh -c 'echo c >/proc/sysrq-trigger; sleep 9'" 1 "the guest's kernel complained: .*(crash|panic|Internal error|Unable to handle)"
# The emulator's arguments contain the kernel's parameters.
emulator() { pgrep -f "qemu-system.*x=$work"; }
exceeding() {
	lab --clock free --timeout 20s --append "x=$work" -- sleep 1000 &
	process=$!
	until emulator >"$work/emulator" || ! kill -0 $process; do
		sleep 0.1
	done
	wait $process
}
check "a run that exceeds its timeout is stopped" exceeding 1 "still running after 20 s"
check "  it had an emulator" "cat $work/emulator" 0 "^[0-9]+$"
check "no process of it is left" "pgrep -f 'x=$work'" 1 ""
# closed VERB...: the exit code and the errors of a verb whose output is closed.
closed() {
	{
		"$memwarden" "$@" 2>"$work/closed.err"
		echo $? >"$work/closed"
	} | true
	cat "$work/closed" "$work/closed.err"
}
check "a closed output is no error" "closed lab run --guest none -- seq 100000" 0 '^0$'
check "  and leaves no message" "test ! -s $work/closed.err" 0 ''
check "a machine can be prepared without a boot" "\"$memwarden\" lab prepare --guest none --json" 0 '"qemu": "QEMU emulator'
check "nor is it where a product is in the cache" "closed lab qemu" 0 '^0$'
check "  the kernel, which was booted above" "closed lab kernel --flavour debug" 0 '^0$'
check "nor where modules are compiled" "closed lab modules --only 6.12-arm64" 0 '^0$'

# first_line VERB...: the same with a reader that takes the first line of output and errors.
first_line() {
	{
		"$memwarden" "$@" 2>&1
		echo $? >"$work/closed"
	} | head -n 1 >"$work/line"
	cat "$work/closed" "$work/line"
}
check "a reader of one line ends no verb" "first_line lab kernel --flavour debug" 0 '^0$'
check "  nor a run of several verdicts" "first_line lab modules --only 6.12-arm64" 0 '^0$'
check "modules that were built cleanly from the same sources are not built again" \
	"$memwarden lab modules --only 6.12-arm64" 0 'ok \(the same sources were built before'

# terminated_at PATTERN FILES: sends SIGTERM to the last background process once one of FILES, a shell's pattern, has the
# PATTERN. Returns the exit code of the process.
terminated_at() {
	process=$! tries=3000
	# shellcheck disable=SC2086 # more files come while it waits
	until grep -qs "$1" $2; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] && kill -0 $process || break
		sleep 0.1
	done
	kill -TERM $process
	wait $process
}

# A machine that is offline at its first run, with a cache of its own.
echo 'Acquire::http::Proxy::deb.debian.org "http://127.0.0.1:9";' >"$work/offline"
check "without a connection there are no package lists" \
	"XDG_CACHE_HOME=$work/empty APT_CONFIG=$work/offline \"$memwarden\" lab qemu" 1 \
	"fetch Debian 12's lists of source packages: apt-get failed"

# A build of the emulator that gets a signal, with the same cache: it has fetched the lists.
interrupted_build() {
	XDG_CACHE_HOME=$work/empty "$memwarden" lab qemu >"$work/build" 2>&1 &
	terminated_at 'applying 0001' "$work/build"
	code=$?
	tail -n 1 "$work/build"
	return $code
}
check "a signal ends a build" interrupted_build 143 "^memwarden: interrupted: .* incomplete files removed$"
check "  of which nothing is left" "ls -A $work/empty/memwarden/own" 0 "!."

# An experiment that gets a signal in its third case. No other test has its load, so no other console names that case.
interrupted() {
	"$memwarden" interfere --on lab --victim latency --victim-memory 64K --victim-iterations 1 \
		--aggressors bandwidth:compare --aggressor-memory 64K --cpus 1-2 --repeat 100 --settle 1ms \
		--backend null --out "$work/cut" >"$work/cut.out" 2>"$work/cut.err" &
	terminated_at 'memwarden-step: 2/.* bandwidth:compare x2' 'target/lab/jobs/.tmp*/console'
	code=$?
	cat "$work/cut.err"
	return $code
}
check "a signal ends an experiment in the guest" interrupted 143 "^memwarden: the run was not completed: [1-9][0-9]* samples are in .*/cut[.]partial$"
check "  which keeps the finished cases" "cut -d , -f 1 $work/cut.partial/samples.csv | sort -u" 0 "^bandwidth:compare x1$"
check "  but has no summary" "ls $work/cut.partial $work" 0 "!summary.json|^cut$"
check "  and names the lab" "cat $work/cut.partial/run.json" 0 '"target": "lab"'
check "the next run is refused before it boots" \
	"$memwarden interfere --on lab --out $work/cut" 1 "left from an interrupted run"
finish
