#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on Debian's kernel
# cftu's policies by what the channels say that they did, on the counted clock.
. /host/lab/check.sh
. /host/lab/cftu-share.sh

policies() { /host/lab/cftu-policies "$@"; }

modprobe swdma channels=4
modprobe cftu

check "exclusive: each CPU's copies are on its own channel" \
	"policies exclusive | awk '{ print \$4 }' | sort -u | tr '\n' ' '" 0 '^1 2 4 8 $'
check "shared: all channels are used" "policies shared | awk '\$4 > 50' | wc -l" 0 '^4$'

# The emulator gives a CPU its turn each 50 us or later: windows of a hundred times the usual.
shares 100
rmmod cftu
rmmod swdma
finish
