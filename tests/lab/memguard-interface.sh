#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# memguard's files: their contents, and the writes that they accept and refuse.
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

# The masks change on their own; all other settings change only by a write.
settings() { cat "$G/limit" "$G/control" | grep -Ev '^(active|throttled): '; }

refused() { # WHAT FILE TEXT PATTERN-OF-THE-REASON
	# Ten lines in five seconds is what the log's rate limit lets through; a
	# fresh module has a fresh limit.
	if [ $((refusals % 9)) = 0 ]; then
		unload
		load
		set_to limit "mb 1000 100 100 100"
	fi
	refusals=$((refusals + 1))
	before=$(settings)
	dmesg -c >/dev/null
	check "$2 refuses $1" "printf '%b' '$3' >$G/$2" 1 ""
	check "  and says why" "dmesg" 0 "memguard: $2: .*$4"
	check "  and changes nothing" "is '$before' = '$(settings)'" 0 "^yes"
}
refusals=0

check "an unknown event is refused" "modprobe memguard g_hw_type=nope" 1 ""
check "  with a line that names the remedy" "dmesg" 0 "g_hw_type=nope is unknown; try"
check "an event that the processor lacks is refused, too" "modprobe memguard g_hw_type=apple" 1 ""
check "  with a line" "dmesg" 0 "g_hw_type=apple counts no memory traffic; try"
if grep -q 'CPU implementer.*0x00' /proc/cpuinfo; then
	check "for a processor that is not in the table no event is guessed" "modprobe memguard" 1 ""
	check "  with a line that names the processor and the remedy" "dmesg" 0 \
		"CPU0 \(maker 0x?0, family 0x?0, model 0x51\) is not in the table of events: give g_hw_type="
elif [ "$(uname -m)" = x86_64 ]; then
	# QEMU calls itself an Athlon of 2006.
	check "for a processor that is not in the table no event is guessed" "modprobe memguard" 1 ""
	check "  with a line that names the processor and the remedy" "dmesg" 0 \
		"CPU0 \(maker 0x[0-9a-f]+, family 0xf, model 0x6b\) is not in the table of events: give g_hw_type=cache-misses"
else
	skip "for a processor that is not in the table no event is guessed" "the platform's is in it"
fi
check "a period of 3 us is refused" "modprobe memguard period_us=3" 1 ""
check "a raw event of 0 is refused" "modprobe memguard g_read_counter_id=0" 1 ""
if ls /sys/bus/event_source/devices/*/events/l1d_cache_refill >/dev/null 2>&1; then
	skip "fault 7: an event that the PMU lacks fails the load" "the platform's PMU has it"
else
	check "fault 7: an event that the PMU lacks fails the load" \
		"modprobe memguard g_hw_type=cache-misses" 1 ""
	check "  with a line that says which core and why" "dmesg" 0 \
		"CPU0: event cache-misses \(read, 0x3\) refused with error -[0-9]+; try another"
	check "  and no file is left" "ls $G /sys/kernel/debug/memguard" 1 ""
	check "  and no thread" "ps" 0 "!memguard/"
fi

if has_pmu; then
	modprobe memguard g_read_counter_id=0x17 g_write_counter_id=0x18
	set_to write_limit "mb 100"
	check "write-backs can have a budget if they have an event" "cat $G/write_limit" 0 \
		"^CPU0: 1638 \(100MB/s, 8 pct, w0\)$"
	check "  and 1000 MB/s is 16384 lines of 64 bytes" \
		"set_to limit 'mb 1000'; cat $G/limit" 0 "^CPU0: 16384 \(1000MB/s, 83 pct, w0\)$"
	unload
else
	skip "write-backs can have a budget if they have an event" "this machine has no PMU"
fi
check "loads" "load maxbw=1300" 0 ""

for file in limit read_limit write_limit control share failcnt; do
	check "only root may open $file" "busybox stat -c %a $G/$file" 0 "^600$"
done
for file in usage stats; do
	check "$file is read-only" "busybox stat -c %a $G/$file" 0 "^400$"
done

check "no limits at first" "cat $G/limit" 0 "^CPU0: max$"
set_to limit "mb 1000 100 100 100"
check "MB/s, percent and weight are shown" "cat $G/limit" 0 \
	"^CPU0: 256 \(1000MB/s, 77 pct, w0\)$"
set_to limit "500"
check "a plain number means events, for the first core only" "cat $G/limit" 0 "^CPU0: 500 "
check "  and the others keep theirs" "cat $G/limit" 0 "^CPU1: 25 \(100MB/s"
set_to limit "cpu3 mb 200"
check "one core by name" "cat $G/limit" 0 "^CPU3: 51 \(200MB/s"
set_to limit "pct 50 10 10 10"
check "percent of maxbw" "cat $G/limit" 0 "^CPU0: 166 \(648MB/s, 50 pct, w0\)$"
set_to limit "weight 4 1 1 1"
check "weights share maxbw" "cat $G/limit" 0 "^CPU0: 189 \(738MB/s, 57 pct, w4\)$"
check "the classic share file shows weights" "cat $G/share" 0 "^CPU0: 4$"
set_to share "1 1 1 1"
check "  and accepts them" "cat $G/limit" 0 "^CPU0: 83 \(324MB/s, 25 pct, w1\)$"
set_to limit "mb 1000 100 100 100"
set_to control "period_us 2000"
check "a longer period has more events in it" "cat $G/limit" 0 "^CPU0: 512 \(1000MB/s"
set_to control "period_us 1000"
set_to failcnt 0
check "failcnt accepts any text and resets" "cat $G/failcnt" 0 "^CPU0: 0$"
check "usage has three averages and an overall line" "wc -l <$G/usage" 0 "^5$"
check "stats has a line for each core" "wc -l <$G/stats" 0 "^4$"
for key in maxbw period_us reclaim exclusive qmin event write_event bytes_per_event \
	user_only idle rt active throttled online; do
	check "control shows $key" "cat $G/control" 0 "^$key: "
done

refused "an empty line" limit '\n' "no budget given"
refused "0" limit 'mb 0\n' "above 0"
refused "a negative number" limit 'mb -5\n' "above 0"
refused "a number that overflows" limit 'mb 99999999999999999999\n' "range"
refused "less than an event a period" limit 'mb 1\n' "less than one event"
refused "a word" limit 'mb ten\n' "whole number"
refused "an unknown unit" limit 'kb 10\n' "whole number"
refused "more budgets than cores" limit 'mb 1 1 1 1 1\n' "more budgets than online"
refused "a NUL byte" limit 'mb 10\0 10\n' "NUL"
refused "a core that isn't there" limit 'cpu77 mb 10\n' "no such online"
refused "cpu without number" limit 'cpux mb 10\n' "followed by its number"
refused "two budgets for a core" limit 'cpu1 mb 10 10\n' "one budget only"
refused "101 percent" limit 'pct 101\n' "range"
refused "anything, without a write event" write_limit 'mb 10\n' "counts no writes"
refused "an unknown word" control 'speed 9\n' "unknown setting"
refused "fault 8: period 0" control 'period_us 0\n' "50 to 1000000"
refused "an unknown mode" control 'exclusive 1\n' "0 .none., 2"
refused "reclaim 2" control 'reclaim 2\n' "0 or 1"
refused "maxbw 0" control 'maxbw 0\n' "1 to"
refused "rt of a core that isn't there" control 'rt 77 1\n' "possible cpu"
refused "two settings at once" control 'reclaim 1\nexclusive 2\n' "one setting a write"
refused "a missing number" control 'reclaim\n' "must follow"
check "a write of 64 KiB is too long (E2BIG)" \
	"dd if=/dev/zero of=$G/limit bs=65536 count=1" 1 "Argument list too long"
check "a refused write fails with EINVAL" "echo x | dd of=$G/limit" 1 "Invalid argument"
check "memwarden says why, too" "memwarden guard set --percent 101" 1 "refused .pct 101. for limit: a budget must be"
check "a write without a newline is accepted" "printf 'mb 1000' >$G/limit" 0 ""

# MemGuard's scripts know them in debugfs; a kernel that is locked down has no debugfs.
view=/sys/kernel/debug/memguard
check "each file is in debugfs, too" "ls $view | tr '\n' ' '" 0 "^$(busybox ls $G | tr '\n' ' ')$"
set_to limit "mb 300"
check "  and shows the same" "cmp $view/limit $G/limit" 0 ""
check "  and accepts the same" "echo mb 200 >$view/limit; cat $G/limit" 0 "^CPU0: 51 \(200MB/s"
check "  with the same rights" "busybox stat -c %a $view/limit $view/stats | tr '\n' ' '" 0 "^600 400 $"
# Our own kernels have no security modules; Debian's all have.
mount -t securityfs securityfs /sys/kernel/security
lockdown=/sys/kernel/security/lockdown
if [ -e $lockdown ] || uname -v | grep -q Debian; then
	check "a kernel is locked down" "echo integrity >$lockdown" 0 ""
	check "  which has no debugfs" "cat $view/limit" 1 "Operation not permitted"
	check "  and the guard can still be set" "memwarden guard set --mb 500 && cat $G/limit" 0 "^CPU0: 128 \(500MB/s"
	check "  and shown" "memwarden guard show" 0 "CPU0"
	check "  and the doctor says so" "memwarden doctor" 0 "lockdown +integrity"
else
	skip "a kernel is locked down" "this kernel has no lockdown"
fi

check "unloads" "unload" 0 ""
check "  and leaves no thread" "ps" 0 "!memguard/"
check "  and no files" "ls $G $view /sys/class/misc" 1 "!memguard.limit"
if [ -e $lockdown ]; then
	check "a module that is not signed is refused in a line that says why" "memwarden guard start --backend module" 1 \
		"locked down \(Secure Boot\) and takes signed modules only: sign it"
else
	skip "a module that is not signed is refused in a line that says why" "this kernel has no lockdown"
fi
finish
