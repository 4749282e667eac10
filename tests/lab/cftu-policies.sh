#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# figures: of the counted clock on Debian's kernel
# cftu's policies by what the channels say that they did, on the counted clock.
. /host/lab/check.sh

policies() { /host/lab/cftu-policies "$@"; }

modprobe swdma channels=4
modprobe cftu

check "exclusive: each CPU's copies are on its own channel" \
	"policies exclusive | awk '{ print \$4 }' | sort -u | tr '\n' ' '" 0 '^1 2 4 8 $'
check "shared: all channels are used" "policies shared | awk '\$4 > 50' | wc -l" 0 '^4$'

# The high channel has the window to itself for its quantum: within 5 %. The quanta are
# a hundred times the usual ones: the emulator gives a CPU its turn each 50 us or later.
share() {
	policies priority "$1" "$2" | tee /tmp/share |
		awk -v part="$(($1 * 1000 / ($1 + $2)))" \
			'{ print; exit !($3 > part / 10 * 0.95 && $3 < part / 10 * 1.05) }'
}
for quanta in "3000000 6000000" "4500000 4500000" "6000000 3000000"; do
	check "priority, $quanta ns: the low channels are kept back so long" "share $quanta" 0 'kept back'
	sed 's/^/# /' /tmp/share
done
rmmod cftu
rmmod swdma
finish
