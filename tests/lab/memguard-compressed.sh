#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# guard start with compressed module files that the kernel can't unpack: the kernel knows one format, and
# of xz no checksum but CRC32. Runs in the guest.
# options: --package xz-utils
. "$(dirname "$0")/check.sh"
# shellcheck source=tests/lab/memguard.sh
. "$(dirname "$0")/memguard.sh"

cp "$(find /lib/modules -name memguard.ko)" /tmp/memguard.ko
gzip -c /tmp/memguard.ko >/tmp/memguard.ko.gz
# As DKMS does on Debian 12, with the checksum CRC64. By its path: the shell's own xz does not compress.
/usr/bin/xz -f /tmp/memguard.ko
echo "no module" >/tmp/broken.ko.xz

start() { memwarden guard start --backend module --no-self-test --event page-faults --module "$1"; }

for ending in xz gz; do
	check "a module file .ko.$ending is loaded" "start /tmp/memguard.ko.$ending" 0 ''
	check "  and regulates" "setting event" 0 '^page-faults'
	check "  and is unloaded" "memwarden guard stop; is ! -e /sys/module/memguard" 0 '^yes$'
done
check "a broken file is refused with the reason" "start /tmp/broken.ko.xz" 1 \
	'loading /tmp/broken.ko.xz failed: unpacking it with xz: .*format not recognized'
finish
