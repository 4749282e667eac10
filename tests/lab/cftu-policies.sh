#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on Debian's kernel
# cftu's policies by the channels' counts, on the counted clock; and pointers with tags, for which
# our own kernels are not configured.
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

# Pointers with tags, which an engine does not check. The lab's machine has no MTE.
/host/lab/cftu-tags >/tmp/tags
tags() { cat /tmp/tags; }
check "a tag without tagged addresses enabled: EFAULT" "tags | grep -c '^untagged .*: stopped, 0 by'" 0 '^2$'
check "an ignored tag: the engine copies" "tags | grep -c '^ignored .*: right, 16384 by'" 0 '^2$'
if grep -q '^checked: no MTE' /tmp/tags; then
	skip "one that is checked is the CPU's" "the machine has no MTE"
else
	check "a checked tag: the CPU copies" "tags | grep -c '^checked, its tag .*: right, 0 by'" 0 '^2$'
	check "  and a wrong tag stops the copy" "tags | grep -c '^checked, another .*: stopped, 0 by'" 0 '^2$'
	check "  such memory is not pinned" "tags | grep '^checked, pinned'" 0 'not supported'
fi
rmmod cftu
rmmod swdma
finish
