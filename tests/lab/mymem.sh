#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# clock: free
# The memory device in C on Debian's kernel: its behaviour, its parameters, loading and
# unloading. On several host cores the guest's CPUs really race.
. /host/lab/check.sh

. /host/lab/mymem-device.sh

device_tests mymem
check "random operations agree with the model" "fresh mymem && /host/lab/mymem-model /dev/mymem $OPERATIONS 1" 0 'no difference'
finish
