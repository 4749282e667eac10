#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# machine: zcu102
# cpus: 1
# full: it wants a second kernel built
# figures: of the counted clock, on which a nanosecond is an instruction
# The same on an engine that can't pause: the CPU's channel is a low one, whose transfers
# begin only where they will end in their time, some 4 us, in which the bytes are compared, too.
. /host/lab/check.sh
. /host/lab/cftu-share.sh

modprobe cftu channels=4
shares 1 14 4
rmmod cftu
finish
