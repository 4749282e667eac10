#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# kernel: own
# full: it wants a second kernel built
# figures: of the counted clock, on which a nanosecond is an instruction
# The cost of tracing a copy.
. /host/lab/check.sh

count() { /host/lab/copytrace-count "$@"; }

# cost LIMIT: the extra instructions of a traced copy.
cost() {
	count cost 20000 | tee /tmp/cost | awk -v limit="$1" '{ print; exit !($(NF - 1) < limit) }'
}
modprobe copytrace
check "with hooks a traced copy takes at most 100 instructions more" "cost 100" 0 more
sed 's/^/# /' /tmp/cost
rmmod copytrace
modprobe copytrace from=probes
check "with probes" "cost 5000" 0 more
sed 's/^/# /' /tmp/cost
rmmod copytrace

modprobe copytrace
check "at full speed no record is lost" \
	"count rate 200 | tee /tmp/rate | awk '{ print; exit !(\$1 >= 5000000) }'" 0 'dropped 0 of'
sed 's/^/# /' /tmp/rate
rmmod copytrace
finish
