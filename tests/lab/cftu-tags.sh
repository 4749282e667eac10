#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# options: --mte
# stock only: our own kernels are not configured for tags
# Pointers and memory with tags, which an engine does not check: the CPU copies what it has to
# check.
. /host/lab/check.sh

modprobe swdma channels=4
modprobe cftu

/host/lab/cftu-tags >/tmp/tags
tags() { cat /tmp/tags; }
tags | sed 's/^/# /'
check "a tag without tagged addresses enabled: EFAULT" "tags | grep -c '^untagged .*: stopped, 0 by'" 0 '^2$'
check "an ignored tag: the engine copies" "tags | grep -c '^ignored .*: right, 16384 by'" 0 '^2$'
check "a checked tag: the CPU copies" "tags | grep -c '^checked, its tag .*: right, 0 by'" 0 '^2$'
check "  and a wrong tag stops the copy" "tags | grep -c '^checked, another .*: stopped, 0 by'" 0 '^2$'
check "  such memory is not pinned" "tags | grep '^checked, pinned'" 0 'not supported'
rmmod cftu
rmmod swdma
finish
