#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/lab-run.sh: tests that tests/lab/run loses no failure, in a checkout that has some small tests, and
# with a stand-in for memwarden, which runs a guest's test here. Prints TAP.
# shellcheck disable=SC2034,SC2317 # check evaluates its command
cd "$(dirname "$0")/.." || exit
. tests/lab/check.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder" "$said"' EXIT
checkout=$folder/checkout
mkdir -p "$checkout/tests/lab/guest"
cp tests/failed-checks "$checkout/tests"
cp tests/lab/run tests/lab/check.sh "$checkout/tests/lab"
printf '/*\n * For arm64 only\n */\nint main(void) { return 0; }\n' >"$checkout/tests/lab/guest/nothing.c"
cat >"$folder/memwarden" <<'END'
#!/bin/sh
for word; do :; done
exec sh "tests/lab/$(basename "$word")"
END
chmod +x "$folder/memwarden"

# test_named NAME: makes a test of the standard input.
test_named() {
	{
		echo '#!/bin/sh'
		cat
	} >"$checkout/tests/lab/$1.sh"
}
test_named good <<'END'
printf 'ok 1 - good\n1..1\n'
END
test_named bad <<'END'
printf 'not ok 1 - two is one\n1..1\n'
END
test_named waits <<END
touch $folder/waits
tries=600
until [ -e $folder/go ] || [ \$tries = 0 ]; do
	tries=\$((tries - 1))
	sleep 0.1
done
printf 'ok 1 - waits\n1..1\n'
END
test_named left-behind <<END
sleep 60 &
echo \$! >$folder/sleep
printf 'ok 1 - left-behind\n1..1\n'
END
test_named zeal <<'END'
# clock: free
rm target/lab/tests/results/bad
printf 'ok 1 - zeal\n1..1\n'
END

lab() { env -u KERNEL -u CLOCK -u PLATFORM -u MACHINE -u DEADLINE MEMWARDEN="$folder/memwarden" "$checkout/tests/lab/run" "$@"; }

check "a failure is counted" "lab good bad | tail -n 1; test \${PIPESTATUS[0]} = 1" 0 '^1 passed, 1 failed, 0 skipped$'
check "  and named" "lab good bad" 1 '^failed: bad: two is one$'

lab bad waits >"$folder/first" 2>&1 &
first=$!
until { [ -e "$folder/waits" ] && grep -q '^# bad took' "$folder/first"; } || ! kill -0 $first 2>/dev/null; do
	sleep 0.1
done
check "a second run in the checkout is refused" "lab good" 2 \
	'^tests/lab/run: another run in this checkout is not over: start this one when it is$'
touch "$folder/go"
check "  and the first one keeps its failure" "wait $first; code=\$?; tail -n 2 $folder/first; (exit \$code)" 1 \
	'^failed: bad: two is one$'
check "  which it counts" "tail -n 1 $folder/first" 0 '^1 passed, 1 failed, 0 skipped$'

check "what a test leaves running" "lab left-behind" 0 '^1 passed, 0 failed, 0 skipped$'
check "  does not hold up the next run" "lab good" 0 '^1 passed, 0 failed, 0 skipped$'
kill "$(cat "$folder/sleep")"

check "a lost result is a failure" "lab bad zeal" 1 \
	'^failed: 2 tests were started, and 1 results are in target/lab/tests/results$'
# Their names differ in capital letters only.
on_kernels() { env KERNEL="$1" MEMWARDEN="$folder/memwarden" "$checkout/tests/lab/run" bad; }
check "each kernel has its result" 'on_kernels "/A /B"' 1 '^0 passed, 2 failed, 0 skipped$'
check "  which names it" 'on_kernels "/A /B"' 1 '^failed: bad on /B: two is one$'
finish
