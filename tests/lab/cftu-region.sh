#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernel: own-debug
# append: usercopy.dma=shared usercopy_region=8M
# The region reserved at boot, on an engine that continues after a terminate: a late write must
# not land in the region of another file.
. /host/lab/check.sh

engine=/sys/module/swdma/parameters
value() { /host/lab/cftu-statistics | sed -n "s/^$1 //p"; }

modprobe swdma channels=4 driver=other && modprobe cftu timeout_ms=20
check "a file has the region reserved at boot" "value region" 0 '^reserved$'
check "and so has the next one" "value region" 0 '^reserved$'
echo 9 >$engine/runaway
check "an engine that runs on after a terminate" "/host/lab/cftu-lost 20" 0 '^20 copies, all as they must be'
echo 0 >$engine/runaway
check "  pages stay allocated" "value held_pages" 0 '^[1-9]'
check "  the region has no new owner" "value region" 0 '^anywhere$'
check "  nor later" "value region" 0 '^anywhere$'
finish
