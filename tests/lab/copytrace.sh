#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernel: own-debug
# copytrace on a kernel with hooks: on all CPUs at once, each copy has a record or is counted as
# dropped. KASAN, kmemleak and lockdep are on.
. /host/lab/check.sh

operations=$OPERATIONS
count() { /host/lab/copytrace-count "$@"; }
# fresh [PARAMETER...]
# shellcheck disable=SC2120
fresh() {
	rmmod copytrace 2>/dev/null
	modprobe copytrace "$@"
}

for wrong in records=63 records=65 records=0 records=33554432 from=x; do
	check "$wrong is refused" "modprobe copytrace $wrong" 1 ''
done
check "and the allowed values are printed" "dmesg | grep copytrace:" 0 'from=x: give hooks or probes'
modprobe copytrace_kunit
results=/sys/kernel/debug/kunit/copytrace/results
check "KUnit: a ring" "cat $results" 0 '^ok 1 copytrace'
check "  and no case is skipped" "cat $results" 0 '!SKIP'
sed -n 's/^ *# interrupts_that_copy_lose_nothing: /# /p' $results
rmmod copytrace_kunit
check "it loads" "fresh" 0 ''
vmalloc_kb() { sed -n 's/^VmallocUsed: *\([0-9]*\) kB/\1/p' /proc/meminfo; }
# Rings of 64 MiB, if memory were allocated for them.
loads_without_rings() {
	rmmod copytrace
	before=$(vmalloc_kb)
	modprobe copytrace records=262144
	after=$(vmalloc_kb)
	echo "# $before kB of vmalloc()ed memory before, $after after" >/tmp/loaded
	[ $((after - before)) -lt 8192 ]
}
check "it takes no memory for unclaimed rings" loads_without_rings 0 ''
cat /tmp/loaded
check "  and frees it when the files are closed" \
	"rmmod copytrace; modprobe copytrace; before=\$(vmalloc_kb); count count 1 >/dev/null; [ \$((\$(vmalloc_kb) - before)) -lt 8192 ]" 0 ''
check "callers are recorded with CAP_PERFMON" "count addresses 20" 0 '^with CAP_PERFMON: addresses, callers of all records told'
check "  and are zero without" "count addresses 20" 0 '^without: no addresses, callers of no records told'
check "only root may open its devices" "stat -c %a /dev/copytrace/* | sort -u" 0 '^600$'

# By hooks and by probes.
each_is_seen() {
	made=$((operations * $(nproc) / 100))
	count count $((operations / 100)) >/tmp/count
	cat /tmp/count
	[ "$(grep -c ": $made of $made\$" /tmp/count)" = 5 ] && grep -q 'dropped 0 missed 0' /tmp/count
}
check "each copy of five kinds has its record" "each_is_seen" 0 '^__to_user 512'
sed 's/^/# /' /tmp/count
check "a full ring drops further records and counts them" \
	"fresh records=64 && count overflow $((operations / 10))" 0 'recorded 64 \+ dropped ([0-9]*) = ([0-9]*) of \2$'
check "with probes: each copy, the __ forms with the others" "fresh from=probes && each_is_seen" 0 '^from_user 512'
check "  and the copies that a full ring drops" \
	"fresh from=probes records=64 && count overflow $((operations / 10))" 0 'recorded 64 \+ dropped ([0-9]*) = ([0-9]*) of \2$'

second_reader() {
	fresh
	# Called directly: through the function, $! would be the PID of a subshell.
	/host/lab/copytrace-count hold 100 &
	first=$!
	# Of the rings it maps the last one is that of __to_user.
	until [ "$(grep -c /dev/copytrace/__to_user /proc/$first/maps)" = "$(nproc)" ]; do
		[ -e /proc/$first/exe ] || return
	done
	count count 1
	kill $first
	wait $first
}
check "a ring has one reader" second_reader 143 'busy'
check "no request causes a kernel warning" "fresh records=1024 && count requests $((operations / 10))" 0 'of them taken'
check "  nor with probes" "fresh from=probes records=1024 && count requests $((operations / 100))" 0 'of them taken'

# Loading and unloading.
cycle() {
	i=0
	while [ $i -lt "$CYCLES" ]; do
		fresh records=1024 && count count 3 >/dev/null || return 1
		i=$((i + 1))
	done
}
while :; do uname -a; done >/dev/null &
busy=$!
check "loaded and unloaded again and again under traffic" "cycle" 0 ''
kill $busy
check "a reader that is killed leaves nothing" \
	"fresh; /host/lab/copytrace-count rate 60000 & sleep 1; kill -9 \$!; wait \$!; rmmod copytrace" 0 ''
check "no memory is leaked" "leaks" 0 '!unreferenced'
finish
