#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/terminal/unit.sh: the systemd unit, as systemd-analyze reads it. Prints
# TAP; skips without systemd. MEMWARDEN: the program.
cd "$(dirname "$0")/../.." || exit
. tests/lab/check.sh

memwarden=$(realpath "${MEMWARDEN:-target/release/memwarden}")
unit=packaging/systemd/memwarden-guard.service
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$said"' EXIT

check "the packaged budget file is well-formed" "$memwarden guard check packaging/systemd/guard.toml" 0 'well-formed'
# The regulator in user space gets no signal: a running command may use it beyond the service's end.
check "a stop signals serve only" "grep ^KillMode= $unit" 0 '^KillMode=process$'
if command -v systemd-analyze >/dev/null; then
	# The program need not be installed for this.
	sed "s,/usr/bin/memwarden,$memwarden," "$unit" >"$folder/memwarden-guard.service"
	check "systemd accepts the unit" "systemd-analyze verify --recursive-errors=no $folder/memwarden-guard.service" 0 '!.'
else
	skip "systemd takes the unit" "there is no systemd-analyze"
fi
finish
