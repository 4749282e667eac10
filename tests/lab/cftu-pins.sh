#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernels: stock:6.1 stock
# Memory that cftu pins to be read: copies have what the process sees later. Before Linux 6.2 such
# a pin of the kernel leaves private memory on the page of zeros, or on the file's page.
. /host/lab/check.sh

modprobe swdma channels=4
modprobe cftu

/host/lab/cftu-pins /tmp >/tmp/pins
pins() { cat /tmp/pins; }
check "what is pinned is what the process sees" pins 0 '!stale'
for kind in 'untouched' 'untouched, to be written' 'read-only, untouched' 'only read' touched \
	'pinned, then forked' 'forked, then pinned' 'a private file' 'a private file, read-only' \
	'two mappings' 'a shared file' 'a shared file, read-only' 'a shared memory file, read-only'; do
	check "$kind" "pins | grep '^$kind: '" 0 ': right$'
done
check "memory with a hole is refused" "pins | grep '^a hole'" 0 ': Bad address$'
check "memory that may not be read, too" "pins | grep '^not to be read'" 0 ': Bad address$'
check "cftu unloads" "rmmod cftu" 0 ''
rmmod swdma
finish
