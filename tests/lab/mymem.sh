#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# clock: free
# The memory device in C on Debian's kernel: what it does, its parameters, how it
# comes and goes. On several host cores the guest's CPUs really race.
. /host/lab/check.sh

. /host/lab/mymem-device.sh

device_tests mymem
check "random operations are as the model says" "fresh mymem && /host/lab/mymem-model /dev/mymem $OPERATIONS 1" 0 'no difference'
finish
