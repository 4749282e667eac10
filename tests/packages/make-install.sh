#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tests/packages/make-install.sh: tests `make install` and `make install-dkms` as other packagers
# use them. Prints TAP. MEMWARDEN: the program.
cd "$(dirname "$0")/../.." || exit
. tests/lab/check.sh

folder=$(mktemp -d)
trap 'rm -rf "$folder" "$said"' EXIT
install="make -s install DESTDIR=$folder PREFIX=/opt/it PROGRAM=$folder/program MEMWARDEN=${MEMWARDEN:-target/dist/memwarden}"

check "a program that was not built is reported" "$install" 2 'is missing: make dist makes it'
cp "${MEMWARDEN:-target/dist/memwarden}" "$folder/program"
check "make installs below PREFIX" "$install" 0 ''
check "the program is installed" "$folder/opt/it/bin/memwarden --version" 0 '^memwarden '
for file in share/man/man1/memwarden.1 share/man/man1/memwarden-guard-run.1 \
	share/bash-completion/completions/memwarden share/zsh/site-functions/_memwarden \
	share/fish/vendor_completions.d/memwarden.fish share/doc/memwarden/docs/install.md \
	share/memwarden/memwarden_job.h share/memwarden/memwarden_job.rs share/memwarden/memwarden_job.py \
	include/memwarden/mymem.h share/doc/memwarden/LICENSES/MIT.txt etc/memwarden/guard.toml; do
	check "$file is installed" "test -s $folder/opt/it/$file" 0 ''
done
check "the service starts that program with that file" \
	"grep ^ExecStart $folder/opt/it/lib/systemd/system/memwarden-guard.service" 0 \
	'^ExecStart=/opt/it/bin/memwarden guard serve .* --config /opt/it/etc/memwarden/guard.toml$'
check "nothing is installed outside PREFIX" "find $folder -type f ! -path '$folder/opt/it/*' ! -name program" 0 '!.'
echo '# mine' >>"$folder/opt/it/etc/memwarden/guard.toml"
check "installing again keeps the budgets" "$install; tail -n 1 $folder/opt/it/etc/memwarden/guard.toml" 0 '^# mine$'
# Into folders with spaces, under a strict umask.
strictly() {
	(umask 077 && make -s "$1" "$2" PROGRAM="$folder/program" MEMWARDEN="$folder/program")
}
its="$folder/a folder/it"
mkdir "$folder/a folder"
check "make installs in a folder with a space, under umask 077" "strictly install PREFIX='$its'" 0 '!.'
check "  and the modules' sources" "strictly install-dkms DESTDIR='$folder/a folder'" 0 'dkms install memwarden/'
check "  nowhere else" "ls -A '$folder' '$folder/a folder' | tr '\n' ' '" 0 \
	": a folder opt program  .*/a folder: it usr \$"
check "  all users can read them" "find '$folder/a folder' ! -perm -004" 0 '!.'
check "  and enter the folders" "find '$folder/a folder' -type d ! -perm -001" 0 '!.'
check "  the service names its files" "grep ^ExecStart '$its/lib/systemd/system/memwarden-guard.service'" 0 \
	"^ExecStart=\"$its/bin/memwarden\" guard serve .* --config \"$its/etc/memwarden/guard.toml\"\$"
if command -v systemd-analyze >/dev/null; then
	check "  and systemd accepts it" \
		"systemd-analyze verify --recursive-errors=no '$its/lib/systemd/system/memwarden-guard.service'" 0 '!.'
else
	skip "  and systemd accepts it" "there is no systemd-analyze"
fi
check "the modules' sources are copied for DKMS" "make -s install-dkms DESTDIR=$folder" 0 'dkms install memwarden/'
check "with the version inserted" "grep ^PACKAGE_VERSION $folder/usr/src/memwarden-*/dkms.conf" 0 \
	"\"$("$folder/program" --version | cut -d ' ' -f 2)\""

# broken FOLDER: the links in its pages that lead to no file.
broken() {
	find "$1" -name '*.md' | while read -r page; do
		sed '/^ *```/,/^ *```/d' "$page" | grep -oE '\]\([^):# ]+[)#]' | sed 's/^](//; s/.$//' | while read -r link; do
			[ -e "$(dirname "$page")/$link" ] || echo "$page: $link"
		done
	done
}
check "each link in the installed pages leads to a file" "broken $folder/opt/it/share/doc" 0 '!.'
# From folders that have files of others, too.
touch "$folder/opt/it/share/doc/memwarden/docs/mine" "$folder/opt/it/include/memwarden/mine"
check "make uninstalls, and keeps the budgets and files of others" \
	"make -s uninstall DESTDIR=$folder PREFIX=/opt/it && find $folder/opt ! -type d | sed 's,.*/,,' | sort | xargs" 0 \
	'^guard.toml mine mine$'
check "  it leaves the modules' sources" "ls $folder/usr/src/memwarden-*/dkms.conf" 0 ''
check "  which have a target of their own" "make -s uninstall-dkms DESTDIR=$folder && ls -A $folder/usr/src" 0 '!.'
rm "$folder/opt/it/share/doc/memwarden/docs/mine" "$folder/opt/it/include/memwarden/mine"
check "  no folder of its own is left" \
	"make -s uninstall DESTDIR=$folder PREFIX=/opt/it && find $folder/opt -name 'memwarden*' ! -path '*/etc/*'" 0 '!.'
check "make uninstalls from a folder with a space" \
	"strictly uninstall PREFIX='$its' && find '$its' ! -type d | sed 's,.*/,,'" 0 '^guard.toml$'
finish
