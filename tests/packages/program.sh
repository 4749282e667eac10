#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/packages/program.sh: tests the size of each package's program, and what the loader does when it
# starts. Prints TAP. packages: the packages' folder; version: their version.
cd "$(dirname "$0")/../.." || exit
. tests/lab/check.sh

: "${packages:?the folder}" "${version:?theirs}"
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$said"' EXIT

# A program at a fixed address has about 190, for the C library's functions; a PIE has thousands.
relocations() { LC_ALL=C readelf -rW "$1" | grep -c '^[0-9a-f]\{12\}'; }

check_program() {
	local architecture=$1 program=$folder/$1/usr/bin/memwarden
	local package=$packages/memwarden_${version}_$architecture.deb
	check "$architecture: the package has a program" "dpkg-deb -x $package $folder/$architecture && test -x $program" 0 ''
	check "$architecture: it is smaller than 12 MB" "test $(stat -c %s "$program") -lt 12000000" 0 ''
	check "$architecture: it has no symbol table" "readelf -SW $program" 0 '!\.symtab'
	check "$architecture: its address is fixed" "readelf -hW $program" 0 'Type: +EXEC'
	check "$architecture: the loader applies fewer than 500 relocations" \
		"test $(relocations "$program") -lt 500 -a $(relocations "$program") -gt 0" 0 ''
	check "$architecture: none of them changes code" "readelf -dW $program" 0 '!TEXTREL'
	check "$architecture: the stack is not executable" "readelf -lW $program | grep GNU_STACK" 0 ' RW '
}

for architecture in amd64 arm64; do
	check_program "$architecture"
done
finish
