#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# clock: free
# full: it takes minutes, and budgets and periods are changed in other tests, too
# All cores change budgets in the same period, also while best effort begins periods early: then a
# core may join a period before the clock shows it. Only the free clock runs cores side by side.
# CHANGES is how often the budgets change.
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/memguard.sh"

load
set_to control "exclusive 5"
set_to limit "events 2 2 2 2"
begin_comparison
i=0
while [ $i -lt "${CHANGES:-2000}" ]; do
	change_settings $i
	i=$((i + 1))
done
end_comparison
sed 's/^/# /' /tmp/compared
check "many periods are compared" "is $(sed 's/ .*//' /tmp/compared) -gt 5000" 0 yes
check "all cores have the same budget in each" "cat /tmp/compared" 0 ", 0 unequal"
check "unloads" "unload" 0 ""
finish
