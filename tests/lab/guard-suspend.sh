#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# stock only: no module of ours is in it, the regulators are in user space
# A CPU that goes offline takes its counters with it, and they do not come back with the CPU. The regulators in user
# space notice that even if they did not run while the CPU was offline: during a suspend, or for one look.
. "$(dirname "$0")/check.sh"
# shellcheck source=tests/lab/memguard.sh
. "$(dirname "$0")/memguard.sh"

# The dry run of a hibernation: it freezes all tasks, takes all CPUs but one offline for five seconds, and goes back. The
# driver of the lab's folder does not survive that, so it is away meanwhile.
suspend() {
	for device in $folders; do echo "$device" >$driver/unbind; done
	echo processors >/sys/power/pm_test
	echo disk >/sys/power/state
	for device in $folders; do echo "$device" >$driver/bind; done
}
driver=/sys/bus/virtio/drivers/9pnet_virtio
folders=$(cd $driver && echo virtio*)

# blip CPU: offline, and online at once.
blip() {
	echo 0 >"/sys/devices/system/cpu/cpu$1/online"
	echo 1 >"/sys/devices/system/cpu/cpu$1/online"
}

# rate CPU: faults as fast as it can for a second, and prints whole MB/s.
rate() {
	memwarden bandwidth --fresh-pages -c "$1" -t 1 | sed -n 's/^.*B\/W = \([0-9]*\)\..*/\1/p'
}

# A budget of 20 pages a millisecond is 78 MB/s; without one, a core has some 1000 MB/s here.
held() {
	mb_s=$(rate "$1")
	echo "# CPU$1: $mb_s MB/s"
	is "$mb_s" -ge 70 && is "$mb_s" -le 85
}

echo +cpu >/sys/fs/cgroup/cgroup.subtree_control
check "a guard in user space" "memwarden guard start --backend user --event page-faults --no-self-test" 0 ""
check "  without budgets a core is looked at rarely: CPU3 is offline meanwhile" "blip 3; sleep 1" 0 ""
check "  which is seen" "cat /run/memwarden/guard.log" 0 "CPU3: the CPU was offline for a moment"
check "  and a budget holds" "memwarden guard set --events 20,20,20,20; held 3" 0 "!^no:"
check "the machine is suspended" "suspend; dmesg" 0 "CPU3 is up"
sleep 0.5
check "  and the guard still runs" "memwarden guard show" 0 "^user: "
check "  which the log does not deny" "cat /run/memwarden/guard.log" 0 "!has ended"
for cpu in 1 2 3; do
	check "  and holds CPU$cpu" "held $cpu" 0 "!^no:"
done
check "  and tells of the periods without counters" "memwarden guard show" 0 "CPU3 was not regulated in [0-9]+ periods"
check "  and ends in order" "memwarden guard stop" 0 ""

# in_group COMMAND...: runs it beside a group with 78 MB/s, whose regulator looks twice a second; later the group faults.
cat >/tmp/late <<'X'
sleep 8
memwarden bandwidth --fresh-pages -c 3 -t 3
X
in_group() {
	memwarden guard run --cgroup batch --event page-faults --events 10000 --period 500ms -- sh /tmp/late >/tmp/out 2>&1 &
	usleep 700000
	"$@"
	wait
	sed 's/^/# /' /tmp/out
	mb_s=$(sed -n 's/^.*CPU3: B\/W = \([0-9]*\)\..*/\1/p' /tmp/out)
	is "$mb_s" -ge 60 && is "$mb_s" -le 95
}
check "a group's CPU is offline between two looks" "in_group blip 3" 0 "!^no:"
check "  which the summary tells" "cat /tmp/out" 0 "NOT held: CPU3 was offline for a moment"
check "a group is held after a suspend" "in_group suspend" 0 "!^no:"
check "  which the summary tells" "cat /tmp/out" 0 "NOT held: CPUs 1-3 were offline for a moment"
finish
