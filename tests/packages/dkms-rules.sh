#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/packages/dkms-rules.sh: tests for which kernels DKMS builds the modules, by dkms.conf.
# Prints TAP.
cd "$(dirname "$0")/../.." || exit
. tests/lab/check.sh
trap 'rm -f "$said"' EXIT

kernel_source_dir=/nowhere dkms_tree=/nowhere
. packaging/dkms/dkms.conf

# taken RELEASE MACHINE, by dkms's own test
taken() { [[ $1 =~ $BUILD_EXCLUSIVE_KERNEL && $2 =~ $BUILD_EXCLUSIVE_ARCH ]]; }

for release in 6.1.0-56-amd64 6.2.0 6.10.3 6.12.117+deb12-rt-amd64 7.3.4+deb13-amd64 10.0.1; do
	check "Linux $release is built for" "taken $release x86_64" 0 ''
done
for release in 2.6.32 4.19.0-27-amd64 5.10.0-36-amd64 6.0.9; do
	check "Linux $release is left out" "taken $release x86_64" 1 ''
done
check "arm64 is built for" "taken 6.1.0-56-arm64 aarch64" 0 ''
check "other processors are left out" "taken 6.1.0 riscv64 || taken 6.1.0 i686" 1 ''

named() { printf '%s\n' "${BUILT_MODULE_LOCATION[@]}" | sort; }
built() { sed -n 's/^obj-m := //p' packaging/dkms/Kbuild | tr ' ' '\n' | sed 's,/$,,' | sort; }
# The checkout's modules except those that need a kernel with Rust or KUnit.
ordinary() {
	dirname kernel/*/Kbuild | grep -v -e kernel/mymem-rust -e kernel/policy-test
}
check "dkms.conf lists the modules that Kbuild builds" 'diff <(named) <(built)' 0 ''
check "no ordinary module is left out" 'diff <(named) <(ordinary)' 0 ''
finish
