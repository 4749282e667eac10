#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on any platform
# cpus: 2
# Two `guard run`s at once, with the module: the first to end takes no budget from the other.
cd /results || exit
. /host/lab/check.sh
. /host/lab/memguard.sh

# guarded CPU SECONDS: fresh pages under 20 MB/s, 5.12 faults per millisecond, in the
# background; the output of the load and of the guard goes to /tmp/CPU.
guarded() {
	memwarden guard run --backend module --event page-faults --cpus "$1" --mb 20 -- \
		memwarden bandwidth --fresh-pages -c "$1" -t "$2" >"/tmp/$1" 2>&1 &
}

# rate CPU: whole MB/s that the CPU's load reports.
rate() { sed -n 's/^.* \([0-9][0-9]*\)\.[0-9]* MB\/s.*/\1/p' "/tmp/$1" | head -n 1; }

guarded 0 3
first=$!
guarded 1 8
second=$!
wait $first
code=$?
sed 's/^/# /' /tmp/0
check "the first ends without an error" "echo $code" 0 '^0$'
check "  in every period" "grep -c 'worst period 5 of 5 events' /tmp/0" 0 '^1$'
check "  and the guard still runs for the second" "cat $G/control" 0 '^online: 0-1$'
check "  with its budget" "grep ^CPU1: $G/limit" 0 '^CPU1: 5 '
check "  while the first core has no budget" "grep ^CPU0: $G/limit" 0 '^CPU0: max'
wait $second
code=$?
sed 's/^/# /' /tmp/1
check "the second ends without an error" "echo $code" 0 '^0$'
check "  held to the end" "is $(rate 1) -le 20" 0 yes
check "  and then the module is unloaded" "cat /proc/modules" 0 '!^memguard'
finish
