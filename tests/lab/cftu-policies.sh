#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on Debian's kernel
# cftu's policies by the channels' counts, on the counted clock.
. /host/lab/check.sh
. /host/lab/cftu-share.sh

policies() { /host/lab/cftu-policies "$@"; }

modprobe swdma channels=4
modprobe cftu

check "exclusive: each CPU's copies use its own channel" \
	"policies exclusive | awk '{ print \$4 }' | sort -u | tr '\n' ' '" 0 '^1 2 4 8 $'
check "shared: all channels are used" "policies shared | awk '\$4 > 50' | wc -l" 0 '^4$'

# Without preemption a channel is not paused while its CPU prepares a transfer, some 10 us.
# So the windows are ten times the usual length.
shares 10

rmmod cftu
rmmod swdma
finish
