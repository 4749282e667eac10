#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# cftu's load while the engine hangs, and calls back later: a load that fails would free the code
# that is called.
. /host/lab/check.sh

modprobe swdma channels=2 driver=other late=1
check "a wrong policy is refused before a transfer is lost" \
	"modprobe cftu policy=none; sleep 1; dmesg | grep 'stay allocated'" 1 ''
check "  cftu is not loaded" "grep '^cftu ' /proc/modules" 1 ''

# The name in sysfs is taken: the device cannot be registered. Last, since cftu then stays loaded.
modprobe memwarden_stall name=cftu
check "a load that loses a transfer and then fails: cftu stays loaded" \
	"modprobe cftu; sleep 1; grep '^cftu ' /proc/modules" 0 ''
check "  a line says so" "dmesg | grep 'cftu: '" 0 'cftu: a transfer was lost at load: cftu stays loaded until the next boot, without /dev/cftu'
check "  cftu stays loaded" "rmmod cftu" 1 ''
finish
