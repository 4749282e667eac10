#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# stock only: its kernel has a fair server and can be locked down
# cpus: 2
# The regulator in user space turns the fair servers off, also where debugfs is not mounted, and says
# so if it cannot.
. "$(dirname "$0")/check.sh"

start="memwarden guard start --backend user --event page-faults --no-self-test"
server=/sys/kernel/debug/sched/fair_server/cpu1/runtime
debugfs() { mount -t debugfs debugfs /sys/kernel/debug; }

before=$(cat $server)
check "a fair server is on" "[ $before -gt 0 ]" 0 ""
umount /sys/kernel/debug
check "without debugfs the doctor finds it" "memwarden doctor | grep 'fair server '" 0 \
	"limited +fair server +CPU [01]: $((before / 1000000)) ms"
check "  and the guard starts" "$start" 0 "!fair server is on"
check "  and shows no server" "memwarden guard show" 0 "!fair server is on"
check "  with no mount" "grep -c debugfs /proc/mounts" 1 '^0$'
debugfs
check "  and its server is off" "cat $server" 0 '^0$'
umount /sys/kernel/debug
check "the guard stops" "memwarden guard stop" 0 ""
debugfs
check "  and the server is as it was" "cat $server" 0 "^$before\$"

mount -t securityfs none /sys/kernel/security
check "the kernel is locked down" "echo integrity >/sys/kernel/security/lockdown" 0 ""
check "the doctor says that the server stays on" "memwarden doctor" 0 \
	"limited +fair server .*cannot be set .Operation not permitted"
check "  and so does the start" "$start" 0 \
	"CPU 0-1: the fair server is on, .* up to 50 ms of each second: .*cpu0/runtime cannot be set .Operation not permitted"
check "  and guard show" "memwarden guard show" 0 "CPU 0-1: the fair server is on"
check "  budgets are accepted" "memwarden guard set --events 5,5" 0 ""
memwarden bandwidth --fresh-pages -c 1 -t 5 >/dev/null
check "  and the regulator lives while the server runs tasks on a throttled core" "memwarden guard show --json | sed -n '/\"cpu\": 1,/,/\"throttled_periods\"/p'" 0 \
	'"throttled_periods": *[1-9]'
check "  and it stops" "memwarden guard stop" 0 ""
finish
