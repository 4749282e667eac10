#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/packages/scripts.sh: tests what the packages' scripts do with the service: an upgrade keeps it, and
# a removal stops it. Prints TAP. packages: the packages' folder; version: their version.
cd "$(dirname "$0")/../.." || exit
. tests/lab/check.sh

: "${packages:?the folder}" "${version:?theirs}"
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$said"' EXIT
program=$folder/program modules=$folder/modules

check "memwarden has scripts" \
	"dpkg-deb -e $packages/memwarden_${version}_$(dpkg --print-architecture).deb $program && ls $program" 0 '^prerm$'
check "memwarden-dkms has scripts" \
	"dpkg-deb -e $packages/memwarden-dkms_${version}_all.deb $modules && ls $modules" 0 '^postinst$'
check "the shell can read them" "for script in $program/p* $modules/p*; do sh -n \$script || exit; done" 0 '!.'
check "an upgrade restarts the service" "cat $program/postinst" 0 \
	'(_dh_action=|deb-systemd-invoke )restart'
check "  and does not stop it first" "cat $program/preinst 2>/dev/null; true" 0 '!stop'
check "  after the modules' upgrade it is restarted again" \
	"grep -oE 'common.postinst|try-restart .*service' $modules/postinst | uniq | tr '\n' ' '" 0 \
	'^common.postinst try-restart memwarden-guard.service $'
check "a removal stops the service" "cat $program/prerm" 0 "deb-systemd-invoke stop '?memwarden-guard.service"
check "  and then a guard that runs without it" "grep -oE 'deb-systemd-invoke stop|memwarden guard stop' $program/prerm | tr '\n' ' '" 0 \
	'^deb-systemd-invoke stop memwarden guard stop $'
finish
