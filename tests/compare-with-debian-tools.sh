#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Compares `memwarden bandwidth` with tools that Debian packages: both run
# alternately in several rounds; the result is the median of the rounds' ratios. Prints a
# table; fails only if a tool does. Not part of any test suite: it measures
# this machine, and takes a minute.
#
#   apt-get install stress-ng sysbench mbw
#   tests/compare-with-debian-tools.sh [ROUNDS] [CPU]
#
# Run as root, all programs get SCHED_FIFO, so that other tasks do not disturb.
set -eu

rounds=${1:-5}
cpu=${2:-0}
memwarden=${MEMWARDEN:-$(dirname "$0")/../target/release/memwarden}
# Far larger than a desktop's last-level cache; smaller than a small board's memory.
size=${SIZE_MIB:-128}

for tool in stress-ng sysbench mbw taskset "$memwarden"; do
    command -v "$tool" >/dev/null || { echo "$0: $tool is missing (apt-get install stress-ng sysbench mbw)" >&2; exit 1; }
done
alone="taskset -c $cpu"
chrt -f 10 true 2>/dev/null && alone="chrt -f 10 taskset -c $cpu"

results=$(mktemp)
trap 'rm -f "$results"' EXIT

# MiB/s of one run of ours: kind, arrays in the buffer.
ours() {
    $alone "$memwarden" bandwidth -a "$1" -m $((size * $2))M -t 1 | sed -n 's/.*B\/W = \([0-9.]*\) MB.*/\1/p'
}

sysbench_memory() {
    $alone sysbench memory --memory-block-size="${size}M" --memory-oper="$1" --memory-total-size=1000G --time=1 run |
        sed -n 's/.*(\([0-9.]*\) MiB\/sec).*/\1/p'
}

memrate() {
    $alone stress-ng --memrate 1 --memrate-bytes "${size}M" --memrate-ops 1 --metrics 2>&1 |
        sed -n "s/.* \([0-9.]*\) $1 MB per sec.*/\1/p"
}

# mbw counts copied bytes once; memwarden counts the line read and the line written.
mbw_copy() {
    $alone mbw -q -n 5 -t0 "$size" | sed -n 's/^AVG.*Copy: \([0-9.]*\) MiB.*/\1/p' | awk '{ print 2 * $1 }'
}

round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    echo "round $round of $rounds" >&2
    {
        echo "read|sysbench memory read|$(ours read 1)|$(sysbench_memory read)"
        echo "read|stress-ng memrate read64|$(ours read 1)|$(memrate read64)"
        echo "write|sysbench memory write|$(ours write 1)|$(sysbench_memory write)"
        echo "write|stress-ng memrate write64|$(ours write 1)|$(memrate write64)"
        echo "copy|mbw memcpy, both sides counted|$(ours copy 2)|$(mbw_copy)"
    } >>"$results"
done

awk -F'|' -v rounds="$rounds" '
    function median(values, count,    i, j, swap) {
        for (i = 2; i <= count; i++)
            for (j = i; j > 1 && values[j - 1] > values[j]; j--) { swap = values[j]; values[j] = values[j - 1]; values[j - 1] = swap }
        return count % 2 ? values[(count + 1) / 2] : (values[count / 2] + values[count / 2 + 1]) / 2
    }
    $3 == "" || $4 == "" { print "no figure from: " $0 > "/dev/stderr"; failed = 1; exit 1 }
    { key = $1 "|" $2; if (!(key in count)) order[++keys] = key; n = ++count[key]; ours[key, n] = $3; theirs[key, n] = $4 }
    END {
        if (failed) exit 1
        printf "| bandwidth -a | other tool | ours MiB/s | theirs MiB/s | ours / theirs: median (min to max of %d) |\n| --- | --- | --- | --- | --- |\n", rounds
        for (k = 1; k <= keys; k++) {
            key = order[k]; n = count[key]
            for (i = 1; i <= n; i++) { a[i] = ours[key, i] + 0; b[i] = theirs[key, i] + 0; r[i] = a[i] / b[i] }
            middle = median(r, n)
            split(key, name, "|")
            printf "| %s | %s | %.0f | %.0f | %.2f (%.2f to %.2f) |\n", name[1], name[2], median(a, n), median(b, n), middle, r[1], r[n]
        }
    }' "$results"

cat <<'TEXT'

Why a ratio may not be near 1:
- read, write: we touch one word of each 64-byte line, they touch all eight. While
  memory is the limit both move the same lines; where the core is, theirs is slower.
  A core that sees a whole line written may spare reading it first: theirs is faster.
- stress-ng's figure is of a run of some tens of milliseconds, ours of a second.
- copy: a memcpy that writes large blocks past the cache (non-temporal stores or a
  string instruction) moves two lines for each line copied; ours allocates the
  written line in the cache, which makes three: 2/3 = 0.67 where memory is the limit.
TEXT
