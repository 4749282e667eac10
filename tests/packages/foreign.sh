#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/packages/foreign.sh: tests the arm64 package, built on a machine of another architecture. Prints
# TAP; skips if there is no emulator. packages: the packages' folder; version: their version.
cd "$(dirname "$0")/../.." || exit
. tests/lab/check.sh

: "${packages:?the folder}" "${version:?theirs}"
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$said"' EXIT
arm64=$packages/memwarden_${version}_arm64.deb
amd64=$packages/memwarden_${version}_amd64.deb

files_of() { dpkg-deb -c "$1" | awk '{ print $1, $2, $6 }' | sort; }

# The libraries of this machine's arm64 architecture, or of the cross compiler.
emulated() {
	if [ -e /lib/ld-linux-aarch64.so.1 ]; then
		qemu-aarch64 "$folder/usr/bin/memwarden" "$@"
	else
		qemu-aarch64 -L /usr/aarch64-linux-gnu "$folder/usr/bin/memwarden" "$@"
	fi
}

files_of "$amd64" >"$folder/amd64"
check "it has the files of the one for amd64" "files_of $arm64 | diff $folder/amd64 -" 0 ''
check "it is for arm64" "dpkg-deb -f $arm64 Architecture" 0 '^arm64$'
check "it depends on an old C library" "dpkg-deb -f $arm64 Depends" 0 'libc6 \(>= 2\.34\)'
dpkg-deb -x "$arm64" "$folder"
if command -v qemu-aarch64 >/dev/null; then
	check "the program is this version" "emulated --version" 0 "^memwarden $version\$"
	check "the doctor checks the machine" "emulated doctor" 0 'memguard module'
	check "bandwidth measures" "emulated bandwidth -m 64 -i 1" 0 'B/W = [0-9.]+ MB/s'
else
	skip "the program runs" "there is no qemu-aarch64: apt-get install qemu-user"
fi
finish
