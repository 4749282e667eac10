# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
# shares SCALE [CHANNELS [UNUSED_US]]: under the priority policy the low channels are held back for
# the high quantum of each window, within 5 %. The quanta are SCALE times 30 and 60, 45 and 45,
# 60 and 30 us; the high channel is the first, or CHANNELS, a bit each. At the end of each window
# UNUSED_US may go unused, if a transfer would not end in time.

share() {
	high=$(($1 * 1000)) low=$(($2 * 1000)) channels=${3:-1}
	unused=$((${4:-0} * 1000 / ($1 + $2)))
	/host/lab/cftu-policies priority $high $low "$channels" >/tmp/share || return
	cat /tmp/share
	awk -v part="$(($1 * 1000 / ($1 + $2)))" -v unused="$unused" \
		'{ exit !($3 > part / 10 * 0.95 && $3 < part / 10 * 1.05 + unused / 10) }' /tmp/share
}

shares() {
	scale=$1 first=${2:-1} spare=${3:-0}
	for quanta in "30 60" "45 45" "60 30"; do
		# shellcheck disable=SC2086
		set -- $quanta
		check "priority, $(($1 * scale)) and $(($2 * scale)) us: the low channels are held back for that share" \
			"share $(($1 * scale)) $(($2 * scale)) $first $spare" 0 'kept back'
		sed 's/^/# /' /tmp/share
	done
}
