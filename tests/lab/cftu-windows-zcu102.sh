#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# machine: zcu102
# cpus: 1
# full: it wants a second kernel built
# figures: of the counted clock, on which a nanosecond is an instruction
# The same on an engine that can't pause. The CPU's channel is a low one, whose transfers begin
# only if they will end within the window's low part; one takes some 4 us, with the comparison.
. /host/lab/check.sh
. /host/lab/cftu-share.sh

modprobe cftu channels=4
shares 1 14 4
rmmod cftu
finish
