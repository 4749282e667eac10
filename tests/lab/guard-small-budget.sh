#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# cpus: 1
# stock only: no module of ours is in it, the regulator is in user space
# A budget as small as what the regulator's own thread uses must not stop the only CPU for good.
. "$(dirname "$0")/check.sh"
# shellcheck source=tests/lab/memguard.sh
. "$(dirname "$0")/memguard.sh"

if ! has_pmu; then
	skip "the regulator's thread uses a budget of cycles" "this machine counts no cycles"
	finish
fi
memwarden guard start --backend user --event cycles --no-self-test >/dev/null 2>&1
check "a budget that the regulator's thread would use up is refused" "memwarden guard set --events 5000" \
	1 "^memwarden: 5000 events per period are too few for CPU0: give [0-9]+ or more"
least=$(memwarden guard set --events 5000 2>&1 | sed 's/.*give \([0-9]*\) or more.*/\1/')
echo "# at least $least cycles"
check "the least one is accepted" "memwarden guard set --events $least" 0 ""
check "  and tasks go on" "for i in \$(seq 1000); do :; done; echo went on" 0 "^went on$"
check "  with the core held" "memwarden guard show --json" 0 '"throttled_periods": *[1-9]'
check "  and the guard can be stopped" "memwarden guard stop" 0 ""
check "page faults, of which the thread makes none, have no such limit" \
	"memwarden guard start --backend user --event page-faults --no-self-test && memwarden guard set --events 1 && memwarden guard stop" 0 ""
finish
