#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/packages/in-chroot.sh VERSION: in a chroot that `run` makes, with the packages beside this
# file: installs them, uses them, removes them. Prints TAP.
cd "$(dirname "$0")" || exit
. ./check.sh

version=$1
architecture=$(dpkg --print-architecture)
# The running kernel is another one; the headers are this Debian's.
kernel=$(basename /lib/modules/*)
program=./memwarden_${version}_$architecture.deb
modules=./memwarden-dkms_${version}_all.deb
names="memguard copytrace cftu swdma mymem"
unset LANGUAGE
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root MANWIDTH=80

# Lists all files, with checksums of those in /etc. Skips the databases of dpkg, apt and man, logs (the guard's too, which
# lasts until the next boot), and files that dkms and depmod keep for a kernel: the signing key, the index of modules.
inventory() {
	find / \( -path /proc -o -path /sys -o -path /dev -o -path /packages -o -path /tmp -o -path /root \
		-o -path /run/memwarden -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \) -prune \
		-o ! -path '/var/lib/dkms/mok.*' ! -path '/usr/lib/modules/*/modules.*' -print | sort
	find /etc -type f -exec sha256sum {} + | sort
}

lintian_of() { lintian --allow-root --no-cfg --fail-on error,warning ./*.deb; }

apt() { apt-get -qq -y -o Dpkg::Use-Pty=0 "$@" 2>&1; }

# A long word may leave a line short; everything else is a mistake in the page.
each_page() {
	for page in /usr/share/man/man1/memwarden*.1.gz; do
		man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null |
			grep -v 'cannot adjust line' | sed "s,^,$page: ,"
	done
}

# Every verb that the help lists has a page.
pages_missing() {
	verbs=$(memwarden --help |
		sed -n '/^Commands:/,/^Options:/s/^  \([a-z][a-z0-9-]*\) .*/\1/p' | grep -vx help)
	[ "$(echo "$verbs" | wc -l)" -ge 15 ] || echo "the verbs in --help are not found"
	for verb in $verbs; do
		man -w "memwarden-$verb" >/dev/null || echo "memwarden-$verb"
	done
}

bash_completes() {
	bash -c '. /usr/share/bash-completion/completions/memwarden
		COMP_WORDS=(memwarden guard s) COMP_CWORD=2
		_memwarden memwarden s guard; echo "${COMPREPLY[@]}"'
}

modules_say() {
	for name in $names; do
		modinfo -k "$kernel" -F version "$name"
		modinfo -k "$kernel" -F filename "$name"
	done | sort | uniq -c
}

check "lintian reports nothing" lintian_of 0 '!^[EW]:'
inventory >/tmp/before

began=$(date +%s%N)
check "apt installs memwarden" "apt install $program" 0 ''
# Page faults can be counted on every machine.
check "the first guarded run is held to its budget" \
	"memwarden guard run --backend user --event page-faults --mb 100 -- memwarden bandwidth --fresh-pages -c 0 -t 2" 0 \
	'CPU0 ([1-9][0-9]|10[0-4])\.[0-9] of 97\.7 MB/s'
echo "# $((($(date +%s%N) - began) / 1000000)) ms from apt install to the end of a guarded run of 2 s"
check "the program is this version" "memwarden --version" 0 "^memwarden $version\$"
check "the doctor checks the machine" "memwarden doctor" 0 'memguard module'
check "bandwidth measures" "memwarden bandwidth -m 1024 -i 2" 0 'B/W = [0-9.]+ MB/s'
check "man finds the program's page" "man -w memwarden" 0 '/usr/share/man/man1/memwarden.1.gz'
check "man finds a verb's page" "man memwarden-guard-run" 0 'memwarden guard run --mb'
check "each verb has a page" pages_missing 0 '!.'
check "man warns about no page" each_page 0 '!.'
check "whatis describes it" "mandb -q; whatis memwarden" 0 'memory traffic'
check "bash completes a verb's verbs" bash_completes 0 '^set show stop serve start$|^start set show stop serve$'
check "bash offers no hidden verb" "grep user-regulator /usr/share/bash-completion/completions/memwarden" 1 ''
check "zsh finds its completions" \
	"zsh -f -c 'autoload -Uz compinit; compinit -D -u; print \$_comps[memwarden]'" 0 '^_memwarden$'
check "fish completes a verb" "fish -c 'complete -C \"memwarden gua\"'" 0 '^guard'
check "the service is installed" "cat /usr/lib/systemd/system/memwarden-guard.service" 0 'ExecStart=/usr/bin/memwarden guard serve'
check "the service is not enabled" "find /etc/systemd -name 'memwarden*'" 0 '!.'
check "the packaged budget file is well-formed" "memwarden guard check /etc/memwarden/guard.toml" 0 'well-formed'

check "apt installs memwarden-dkms" "apt install $modules" 0 ''
check "dkms adds it" "dkms status memwarden/$version" 0 "memwarden/$version"
check "dkms builds it for this Debian's kernel, as a new kernel's installation does" \
	"dkms autoinstall -k $kernel; dkms status memwarden/$version -k $kernel" 0 'installed'
check "all modules exist, with this version" "modules_say" 0 "^ +5 $version\$"
check "they are for this kernel" "modinfo -k $kernel -F vermagic memguard | grep -F '$kernel '" 0 ''

# The administrator's changes: budgets, and the links of systemctl enable.
echo '# mine' >>/etc/memwarden/guard.toml
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s /usr/lib/systemd/system/memwarden-guard.service /etc/systemd/system/multi-user.target.wants
check "installing again keeps the budgets" "apt install --reinstall $program; tail -n 1 /etc/memwarden/guard.toml" 0 '^# mine$'
check "removing keeps the budgets" "apt remove memwarden memwarden-dkms; tail -n 1 /etc/memwarden/guard.toml" 0 '^# mine$'
check "removing also removes the modules" "modinfo -k $kernel memguard" 1 'not found'
check "apt purges both" "apt purge memwarden memwarden-dkms" 0 ''
check "nothing is left behind" "inventory >/tmp/after; diff /tmp/before /tmp/after" 0 '!.'
finish
