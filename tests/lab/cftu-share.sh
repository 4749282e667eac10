# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
# shares: under the priority policy the low channels are kept back for the high ones'
# quantum of each window, within 5 %. The quanta are a hundred times the usual ones: the
# emulator gives a CPU its turn each 50 us or later. Where one had no turn for a whole
# window, as happens, the figure says nothing about the policy and is measured anew.

share() {
	for _ in 1 2 3 4; do
		/host/lab/cftu-policies priority "$1" "$2" >/tmp/share || return
		cat /tmp/share
		awk '{ exit $10 >= 9000 }' /tmp/share && break
	done
	awk -v part="$(($1 * 1000 / ($1 + $2)))" \
		'{ exit !($3 > part / 10 * 0.95 && $3 < part / 10 * 1.05) }' /tmp/share
}

shares() {
	for quanta in "3000000 6000000" "4500000 4500000" "6000000 3000000"; do
		check "priority, $quanta ns: the low channels are kept back so long" "share $quanta" 0 'kept back'
		sed 's/^/# /' /tmp/share
	done
}
