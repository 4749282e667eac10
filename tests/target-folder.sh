#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/target-folder.sh: ./demo, ./test, make and scripts/record-runs run the program that they have
# just built, also if cargo is set to build in another folder. With stand-ins for cargo and memwarden.
# Prints TAP.
# shellcheck disable=SC2016,SC2317 # check evaluates its command
cd "$(dirname "$0")/.." || exit
. tests/lab/check.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder" "$said"' EXIT
mkdir -p "$folder/scripts" "$folder/target/release"
cp demo test Makefile "$folder"
cp scripts/record-runs "$folder/scripts"
printf '#!/bin/sh\n' >"$folder/scripts/install-packages"

# memwarden WORD: a program that prints the word, and leaves a run folder if it is given one.
memwarden() {
	cat <<-END
		#!/bin/sh
		echo "the program is $1"
		while [ \$# -gt 0 ]; do
			if [ "\$1" = --out ]; then
				mkdir -p "\$2" && : >"\$2/samples.csv"
			fi
			shift
		done
		echo "1 built, 0 failed"
	END
}
memwarden new >"$folder/new"
# Its configuration names another folder (build.target-dir), which the environment overrides.
cat >"$folder/cargo" <<'END'
#!/bin/sh
target=${CARGO_TARGET_DIR:-configured}
mkdir -p "$target/release" && cp new "$target/release/memwarden" && chmod +x "$target/release/memwarden"
END
memwarden old >"$folder/target/release/memwarden"
chmod +x "$folder"/{cargo,target/release/memwarden,scripts/install-packages}

# The scripts put /usr/bin first on PATH, but find functions before programs. ./demo compiles the
# guest's program with make.
cargo() { "$folder/cargo"; }
make() { [[ " $* " == *" guest "* ]] || command make "$@"; }
export folder
export -f cargo make

# program_of COMMAND...: runs it in the folder, which has an old program, and prints which program it ran.
program_of() {
	memwarden old >"$folder/target/release/memwarden"
	(cd "$folder" && "$@") 2>&1 | grep '^the program is' | sort -u
}

unset CARGO_TARGET_DIR
for set in "cargo's configuration" "the environment"; do
	[ "$set" != "the environment" ] || export CARGO_TARGET_DIR=$folder/elsewhere
	for command in './demo' './test modules' 'make -s modules CARGO=./cargo' 'scripts/record-runs mymem-mistakes'; do
		check "${command% CARGO*} runs what it has built, with another folder in $set" \
			"program_of $command | tr '\n' ' '" 0 '^the program is new $'
	done
done
finish
