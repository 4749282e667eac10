#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# machine: zcu102
# full: it wants a second kernel built
# figures: of the counted clock
# The priority policy on an engine that can't pause: a low transfer begins only if it will end
# within the low part of the window.
. /host/lab/check.sh
. /host/lab/cftu-share.sh

modprobe cftu channels=4
shares 1 1 4
rmmod cftu
finish
