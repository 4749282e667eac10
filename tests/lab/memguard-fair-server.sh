#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on any platform
# kernels: stock:6.12 stock:newest
# On a core with a small budget a real-time task gets its share beside an ordinary task if the
# fair server's part of a second is less than the time for which the core runs. If it is more,
# guard show says that the real-time task may get none.
# shellcheck disable=SC2034 # for memguard.sh
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

here=$(dirname "$0")

# faults PID
faults() { cut -d ' ' -f 10 "/proc/$1/stat"; }

echo "# $(uname -rv)"
load
set_to limit "events max 5 max max"
"$here/hog" other 1 &
ordinary=$!
usleep 100000
"$here/hog" fifo 1 &
fifo=$!
usleep 2000000
check "guard show prints the fair server's share" "memwarden guard show" 0 \
	'CPU1 ran for .* the fair server keeps 5.0 % .*\(hog, thread'
check "for this core only" "memwarden guard show | grep -c 'the fair server keeps'" 0 '^1$'
fair_server 1000000
usleep 2000000
check "and not with a smaller server" "memwarden guard show | grep -c 'fair server'" 1 '^0$'
before=$(faults $fifo) ordinary_before=$(faults $ordinary)
usleep 4000000
had=$(($(faults $fifo) - before))
other=$(($(faults $ordinary) - ordinary_before))
echo "# SCHED_FIFO 99 $had faults in 4 s, the ordinary task $other"
kill $ordinary $fifo
wait
check "SCHED_FIFO 99 has most of the core's 20,000 faults in 4 s" "is $had -gt 16000" 0 yes
check "  and both together have no more than these" "is $((had + other)) -le 20200" 0 yes
check "unloads" "unload" 0 ""
finish
