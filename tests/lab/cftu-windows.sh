#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernel: own
# cpus: 1
# full: it wants a second kernel built
# figures: of the counted clock, on which a nanosecond is an instruction
# The priority policy's windows of the usual 90 us, on a preemptible kernel with one CPU and
# exact timers: the CPU's channel is the high one, then a low one.
. /host/lab/check.sh
. /host/lab/cftu-share.sh

modprobe swdma channels=4
modprobe cftu channels=4
shares 1 1
shares 1 14
rmmod cftu
rmmod swdma
finish
