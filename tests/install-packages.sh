#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/install-packages.sh: tests which packages scripts/install-packages chooses on several systems,
# with stand-ins for their apt and dpkg. Prints TAP.
# shellcheck disable=SC2034,SC2317 # check evaluates its command
cd "$(dirname "$0")/.." || exit
. tests/lab/check.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder" "$said"' EXIT
bin=$folder/bin cache=$folder/cache
mkdir -p "$cache/memwarden"
# The lab has its kernels.
touch "$cache/memwarden/newest-6.12.json" "$cache/memwarden/newest-6.12-amd64.json"

# program NAME: makes a program of the standard input.
program() {
	cat >"$bin/$1"
	chmod +x "$bin/$1"
}

# system ARCHITECTURE: a system without a package. Its apt offers what lies in $folder/offered, its dpkg
# has what lies in $folder/installed, each line a name and a version.
system() {
	rm -rf "$bin"
	mkdir "$bin"
	for tool in awk bash cat cut dirname env grep head mktemp printf rm sed sort tail tr; do
		ln -s "$(type -P "$tool")" "$bin/$tool"
	done
	echo "dpkg 1" >"$folder/installed"
	truncate -s 0 "$folder/offered" "$folder/calls" "$folder/architectures"
	program dpkg <<-END
		#!/bin/sh
		case \$1 in
		--print-architecture) echo $1 ;;
		--print-foreign-architectures) cat $folder/architectures ;;
		*) echo "dpkg \$*" >>$folder/calls ;;
		esac
	END
	program dpkg-query <<-END
		#!/bin/bash
		[ "\$*" != "-W dpkg" ] || exec grep -q '^dpkg ' $folder/installed
		while read -r name version; do
			[[ \$name == *:* ]] || name=\$name:$1
			echo "installed \$name \$version"
		done <$folder/installed
		echo "config-files gone:$1 1"
	END
	program apt-cache <<-END
		#!/bin/bash
		[ "\$1" = policy ] || exit
		for name in "\${@:2}"; do
			version=\$(sed -n "s/^\$name //p" $folder/offered)
			if [ "\$name" = valgrind ] && [ -z "\$version" ]; then
				version="(none)"
			fi
			[ -z "\$version" ] || printf '%s:\n  Installed: (none)\n  Candidate: %s\n  Version table:\n' "\$name" "\$version"
		done
	END
	printf '#!/bin/sh\necho "apt-get $*" >>%s\n' "$folder/calls" | program apt-get
	printf '#!/bin/sh\necho 0\n' | program id
}

# offers NAME...: with version 1, or NAME=VERSION.
offers() { printf '%s\n' "$@" | sed '/=/!s/$/=1/; s/=/ /' >>"$folder/offered"; }
withdraws() { sed -i "/^$1 /d" "$folder/offered"; }
has() { printf '%s\n' "$@" | sed '/=/!s/$/=1/; s/=/ /' >>"$folder/installed"; }

# What all releases of Debian have by the same name.
any_debian=(gcc libc6-dev make kmod qemu-system-arm util-linux xz-utils bzip2 apt debian-archive-keyring
	device-tree-compiler libattr1-dev libcap-ng-dev libfdt-dev libglib2.0-dev libpixman-1-dev zlib1g-dev meson
	ninja-build patch pkg-config python3 ca-certificates cpio perl shellcheck sparse valgrind strace procps tmux)
own_kernel=(bc bison clang-19 flex libclang1-19 lld-19 llvm-19)
rust() { printf '%s\n' "cargo-web=$1" "rustc-web=$1" "rustfmt-web=$1" "rust-web-clippy=$1" "rust-web-src=$1" "libstd-rust-web-dev=$1"; }

debian_12() {
	system "$1"
	offers "${any_debian[@]}" "${own_kernel[@]}" qemu-system-x86 libelf1 libssl3 gcc-12 rustc=1.63.0+dfsg1-2 cargo=0.66.0+ds1-1
	mapfile -t web < <(rust 1.96.0+dfsg1-1~deb12u2)
	offers "${web[@]}" "${@:2}"
}
debian_13() {
	system "$1"
	offers "${any_debian[@]}" "${own_kernel[@]}" qemu-system-x86 libelf1t64 libssl3t64 gcc-12 gcc-13 gcc-14 \
		gcc-12-aarch64-linux-gnu gcc-13-aarch64-linux-gnu gcc-14-aarch64-linux-gnu gcc-aarch64-linux-gnu \
		libc6-dev-arm64-cross rustc=1.85.1+dfsg1-1+deb13u1
}
for_arm64=(gcc-12-aarch64-linux-gnu gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
for_amd64=(gcc-12-x86-64-linux-gnu gcc-x86-64-linux-gnu libc6-dev-amd64-cross)

# Further variables of the environment.
variables=()
install() {
	env -i PATH="$bin" HOME="$folder" XDG_CACHE_HOME="$cache" "${variables[@]}" "$(command -v bash)" scripts/install-packages "$@"
}

# lists OPTIONS PACKAGE...: whether --list prints these and nothing else.
lists() {
	diff <(install --list ${1:+"$1"} 2>&1 | sort) <(printf '%s\n' "${@:2}" | sort)
}

debian_12 amd64 "${for_arm64[@]}"
base_12=("${any_debian[@]}" libelf1 libssl3 cargo-web rustc-web rustfmt-web rust-web-clippy libstd-rust-web-dev)
check "Debian 12 on amd64: all packages" \
	'lists "" "${base_12[@]}" "${own_kernel[@]}" qemu-system-x86 gcc-12 "${for_arm64[@]}" libstd-rust-web-dev:arm64 rust-web-src' 0 ''
check "without a kernel: none for the own kernel and the amd64 machine" \
	'lists --no-kernel "${base_12[@]}" "${for_arm64[@]}" libstd-rust-web-dev:arm64' 0 ''
has gcc make rustc-web=1.96.0+dfsg1-1~deb12u2 cargo-web=1.96.0+dfsg1-1~deb12u2
check "installed packages are not listed" "install --list" 0 '!^(gcc|make|rustc-web|cargo-web)$'
check "the rest of the installed Rust is" "install --list" 0 '^libstd-rust-web-dev:arm64$'

debian_12 arm64 "${for_amd64[@]}"
check "Debian 12 on arm64: the compilers for amd64 are the foreign ones" \
	'lists "" "${base_12[@]}" "${own_kernel[@]}" qemu-system-x86 gcc-12 "${for_amd64[@]}" libstd-rust-web-dev:amd64 rust-web-src' 0 ''
check "without a kernel: nothing foreign" 'lists --no-kernel "${base_12[@]}" gcc-12' 0 ''
debian_12 arm64
check "what apt has nothing for, and what fails without it, is one line" 'install --list | grep -c gcc-12$' 0 '^1$'
check "  it is said" "install --list" 0 'gcc-12-x86-64-linux-gnu or a later one, gcc-x86-64-linux-gnu, libc6-dev-amd64-cross; without them, the lab has no amd64 machine$'

debian_13 amd64
mapfile -t web < <(rust 1.96.0+dfsg1-1~deb13u1+b1)
offers "${web[@]}"
check "Debian 13: packages with its names" \
	'install --list | grep -E "^(libelf|libssl|gcc-[0-9]|rustc|cargo)" | tr "\n" " "' 0 \
	'^libelf1t64 libssl3t64 gcc-12-aarch64-linux-gnu gcc-12 cargo-web rustc-web $|^cargo-web rustc-web libelf1t64 libssl3t64 gcc-12-aarch64-linux-gnu gcc-12 $'
debian_13 amd64
check "Debian 13 without security updates: the release's Rust" \
	'install --list --no-kernel | grep -E "rust|cargo" | sort | tr "\n" " "' 0 \
	'^cargo libstd-rust-dev libstd-rust-dev:arm64 rust-clippy rustc rustfmt $'
withdraws gcc-12 && withdraws gcc-12-aarch64-linux-gnu
check "a Debian without gcc 12: the next compiler for modules" 'install --list | grep "^gcc-[0-9]" | tr "\n" " "' 0 \
	'^gcc-13-aarch64-linux-gnu gcc-13 $'
has gcc-14-aarch64-linux-gnu
check "  an installed one is enough" 'install --list | grep "^gcc-[0-9]"' 0 '!aarch64'
withdraws clang-19
check "an own kernel's missing compiler is said" "install --list" 0 "clang-19; without them, the lab's own kernels can't be built\$"
withdraws qemu-system-arm
check "what ./demo needs and apt does not have ends the script" "install --list" 1 'qemu-system-arm; without them, neither ./demo nor ./test works$'

# Rust that is not a package.
rustup() {
	printf '#!/bin/sh\necho "cargo %s (x 2025-01-01)"\n' "$1" | program cargo
	printf '#!/bin/sh\necho %s\n' "$folder/rust" | program rustc
}
rm -rf "$folder/rust"
mkdir -p "$folder/rust/bin" "$folder/rust/lib/rustlib/"{x86_64,aarch64}-unknown-linux-gnu/lib "$folder/rust/lib/rustlib/src/rust/library"
touch "$folder/rust/bin/cargo-clippy" "$folder/rust/bin/rustfmt"
chmod +x "$folder"/rust/bin/*
debian_13 amd64
rustup 1.85.0
check "a cargo that is new enough: no package of Rust" "install --list" 0 '!rust|cargo'
rustup 1.84.1
check "one that is too old: packages" "install --list" 0 '^rustc$'
rustup 1.100.0
check "versions are compared as numbers" "install --list" 0 '!rust|cargo'
rm -r "$folder/rust/lib/rustlib/aarch64-unknown-linux-gnu"
check "one without the guest's part: packages" "install --list" 0 '^libstd-rust-dev:arm64$'
withdraws rustc
check "  without packages either, the part is named" "install --list" 1 '^install-packages: parts of Rust 1.100.0 are missing: rustup target add aarch64-unknown-linux-gnu$'
rustup 1.84.1
check "no Rust that is new enough is said, with the remedy" "install --list" 1 '^install-packages: apt offers no Rust 1\.[0-9]+ or newer: install it with rustup'

# The installation.
debian_12 amd64 "${for_arm64[@]}"
check "packages are installed" "install --no-kernel" 0 '^install-packages: installing: .*gcc-12-aarch64-linux-gnu'
check "  after dpkg has the guest's architecture, and apt new lists" "tr '\n' ' ' <$folder/calls" 0 \
	'^dpkg --add-architecture arm64 apt-get update apt-get install -y --no-install-recommends [^-].*libstd-rust-web-dev:arm64'
printf '#!/bin/sh\necho 1000\n' | program id
printf '#!/bin/sh\nexec env -i PATH=%s "$@"\n' "$bin" | program sudo
printf '#!/bin/sh\necho "$1: $http_proxy $https_proxy $no_proxy" >>%s\n' "$folder/calls" | program apt-get
: >"$folder/calls"
variables=(http_proxy=http://proxy:1 https_proxy=http://proxy:2 no_proxy=.local)
check "with sudo, which drops the environment, packages are installed" "install --no-kernel" 0 '^install-packages: installing: '
check "  through the proxy that the environment names" "tr '\n' ' ' <$folder/calls" 0 \
	'update: http://proxy:1 http://proxy:2 .local install: http://proxy:1 http://proxy:2 .local $'
variables=()
mapfile -t chosen < <(install --list)
has "${chosen[@]}" rustc-web=1.96.0
echo arm64 >"$folder/architectures"
: >"$folder/calls"
check "nothing is said if all is there" "install" 0 '!.'
check "  and apt is not called" "cat $folder/calls" 0 '!.'
check "an unknown option is refused" "install --help" 2 '^install-packages: --help: it takes --no-kernel and --list$'

# Other package managers.
debian_12 amd64
rm "$bin"/{apt-get,apt-cache,dpkg,dpkg-query}
printf '#!/bin/sh\necho x86_64\n' | program uname
check "without apt: what is missing, in one line" "install --no-kernel 2>&1 | grep -c ./demo" 0 '^1$'
check "  by programs and libraries" "install --no-kernel" 1 \
	'install with its own: cargo 1\.[0-9]+ or newer, gcc, make, .*the library glib-2.0, .*aarch64-linux-gnu-gcc; without'
check "  with more for a kernel" "install" 1 "clang-19, .*; without them, the lab's own kernels can't be built"
for name in gcc make depmod qemu-system-aarch64 setsid xz bzip2 apt-get dpkg-deb dtc meson ninja patch pkg-config python3 \
	aarch64-linux-gnu-gcc; do
	ln -sf "$(type -P true)" "$bin/$name"
done
mkdir -p "$folder/rust/lib/rustlib/aarch64-unknown-linux-gnu/lib"
rustup 1.90.0
check "  if none of those is missing, it goes on" "install --no-kernel" 0 '!\./demo'
check "  and names what tests need" "install --no-kernel" 0 'cpio, perl, .*; without them, some tests fail$'
ln -s "$(type -P false)" "$bin/dpkg-query"
for name in apt-cache dpkg; do ln -s "$(type -P true)" "$bin/$name"; done
check "an apt beside another package manager is not used" "install --no-kernel" 0 'apt is not this system.s package manager'
finish
