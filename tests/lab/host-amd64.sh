#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# clock: free
# full: it wants another kernel and a third build of memwarden
# The amd64 machine: what its guest has, and the modules there. The guest tests in $counted run in a boot with one CPU, those
# in $free, with FULL=1, in one with four CPUs; each of their checks is one here. Each other test of the machine virt is a skip with its
# reason.
# shellcheck source=tests/lab/check.sh
. "$(dirname "$0")/check.sh"

memwarden=${MEMWARDEN:-memwarden}
# On one CPU the counted clock is exact there, too.
counted="memguard-hold-one memguard-far-below"
# On the host's clock the CPUs run at once. Last the test that locks the kernel down, after which no module loads.
free="mymem copytrace-probes cftu memguard-stress memguard-cores memguard-interface"
work=$(mktemp -d)
trap 'rm -rf "$work" "$said"' EXIT

# The guest finds its tests in /host/lab here, too, with programs for amd64 (tests/lab/run).
lab() { "$memwarden" lab run --machine amd64 --timeout "${TIMEOUT:-30m}" --with target/lab/tests/amd64/lab "$@"; }

# One after the other, each from /results.
cat >"$work/all.sh" <<'END'
for test; do
	echo "# begin $test"
	sh "/host/lab/$test.sh" 2>&1
	echo "# end $test"
done
END

# adopt FILE: the checks of the guest's tests become checks of this one, and each test is one more: that it came to its end.
adopt() {
	test=none count=0 planned=
	while IFS= read -r line; do
		case $line in
		'# begin '*) test=${line#\# begin } count=0 planned= ;;
		'# end '*) check "$test came to its end" "echo $count" 0 "^${planned:-no plan}$" ;;
		'ok '*' # SKIP '*)
			count=$((count + 1)) what=${line#ok * - }
			skip "$test: ${what% # SKIP *}" "${what#* # SKIP }"
			;;
		'ok '*)
			count=$((count + 1)) checks=$((checks + 1))
			echo "ok $checks - $test: ${line#ok * - }"
			;;
		'not ok '*)
			count=$((count + 1)) checks=$((checks + 1)) failures=$((failures + 1))
			echo "not ok $checks - $test: ${line#not ok * - }"
			;;
		1..*) planned=${line#1..} ;;
		*) echo "# ${line#\# }" ;;
		esac
	done <"$1"
}

# tests FILE OPTION... -- TEST...: runs these tests in one boot.
tests() {
	file=$1
	shift
	lab --with "$work/all.sh" "$@" >"$work/$file" 2>"$work/$file.err"
	code=$?
	tail -n 3 "$work/$file.err"
	return $code
}

cat >"$work/facts.sh" <<'END'
echo "release $(uname -r) $(uname -m) cpus $(nproc)"
modinfo memguard | grep '^filename'
printf '%s|' "$@"; echo
echo to the errors >&2
mkdir -p deep; echo content >deep/file
exit 7
END
facts() {
	lab --guest none --results "$work/results" --with "$work/facts.sh" -- \
		sh /host/facts.sh 'two  words' "it's" >"$work/facts" 2>"$work/facts.err"
}
check "an exit code is carried back" facts 7 ''
check "Debian's 6.12 for amd64 with four CPUs" "cat $work/facts" 0 '^release 6\.12\..*-amd64 x86_64 cpus 4$'
check "memguard can be loaded" "cat $work/facts" 0 '^filename: .*/extra/memguard.ko$'
check "arguments come through unchanged" "cat $work/facts" 0 "^two  words[|]it's[|]$"
check "errors come on the error output" "cat $work/facts.err" 0 '^to the errors$'
check "files are carried back" "cat $work/results/deep/file" 0 '^content$'
check "  with the console" "cat $work/results/console.log" 0 'Linux version 6\.12'
check "--platform is refused" "lab --platform raspberry-pi-3 -- true" 1 'on the machine virt: leave --machine out'

check "tests of one CPU on the counted clock" \
	"tests counted --clock counted --cpus 1 -- env HOLD=${HOLD:-1} sh /host/all.sh $counted" 0 ''
adopt "$work/counted"

# Debian's emulator runs the CPUs on threads of the host. One may then execute a breakpoint that
# the kernel has already removed from its code, as it changes a branch (Oops: int3).
if [ -n "${FULL:-}" ]; then
	check "tests of four CPUs on the host's clock" \
		"tests free --clock free -- env CYCLES=${CYCLES:-2} WRITES=${WRITES:-100} OPERATIONS=${OPERATIONS:-1000} sh /host/all.sh $free" \
		0 ''
	adopt "$work/free"
else
	skip "tests of four CPUs on the host's clock" "the emulator may end them with an oops (int3); FULL=1 runs them"
fi

# why_not SCRIPT: why that test does not run here.
why_not() {
	kernel=$(sed -n 's/^# kernel: //p' "$1")
	if [ -n "$kernel" ]; then
		echo "its kernel, $kernel, is for arm64"
		return
	fi
	case $(basename "$1" .sh) in
	cftu-policies | guard-cgroup | guard-run | memguard-combined | memguard-hold | memguard-hungry | memguard-policy)
		echo "its figures need a clock for each CPU, which the lab's emulator has for arm64 only"
		;;
	memguard-cpus) echo "it needs a PMU" ;;
	*)
		why=$(sed -n 's/^# full: //p' "$1")
		echo "${why:-it would make this test longer}; MACHINE=amd64 tests/lab/run $(basename "$1" .sh) runs it"
		;;
	esac
}
for script in $(grep -L '^# machine: ' "$(dirname "$0")"/*.sh); do
	[ "$(head -c 2 "$script")" = '#!' ] || continue
	test=$(basename "$script" .sh)
	case " $counted $free /$test " in
	*" $test "* | *" /host-"*) ;;
	*) skip "$test" "$(why_not "$script")" ;;
	esac
done
finish
