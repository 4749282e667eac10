# SPDX-License-Identifier: MIT OR Apache-2.0
# The finer targets. A person needs two commands only, ./demo and ./test, which
# also install what all of this needs (scripts/install-packages).

export PATH := /usr/bin:$(PATH)
# Programs lie in ./target, whatever the environment and cargo's configuration say.
export CARGO_TARGET_DIR := $(CURDIR)/target
CARGO := cargo
GUEST := aarch64-unknown-linux-gnu
MEMWARDEN := target/release/memwarden

.PHONY: help build dist guest modules test test-full bench-guard fuzz install install-dkms uninstall uninstall-dkms deb test-packages clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' $(MAKEFILE_LIST) | expand -t 16

build: ## memwarden for this machine, in target/release
	$(CARGO) build --release --locked -p memwarden

# Static: the program has a fixed address, and a start applies no relocation to its data. pie: for distributions that require one.
RELOCATION := static
# Level 3 is that of LTO, for the loops that measure; the crate to which it applies has almost no code (Cargo.toml).
TARGET :=
dist: ## memwarden as packages have it, small, in target/dist (takes minutes)
	$(CARGO) rustc --profile dist --locked -p memwarden --bin memwarden $(if $(TARGET),--target $(TARGET)) \
		-- -C relocation-model=$(RELOCATION) -C opt-level=3

# As in crates/lab/src/guest.rs: static, and nothing is simulated in the guest.
guest: ## memwarden for the lab's guest: static, arm64
	$(CARGO) build --release --locked -p memwarden --target $(GUEST) --no-default-features \
		--config profile.release.package.memwarden-sim.opt-level=0 \
		--config "target.$(GUEST).rustflags=['-C', 'target-feature=+crt-static']"

modules: build ## kernel modules against 16 of Debian's kernels and ours, every warning a failure
	$(MEMWARDEN) lab modules

test: ## what ./test does
	./test

test-full: ## the same with 1000 module loads, 10^6 operations a device, 10^6 random copies, and all on the debug kernel
	FULL=1 CYCLES=1000 WRITES=100000 OPERATIONS=1000000 TRANSFERS=5000 STRIDE=1 HOLD=60 TIMEOUT=4h ./test
	KERNEL=own-debug CLOCK=free TIMEOUT=4h tests/lab/run
	CLOCK=free OPERATIONS=1000000 TRANSFERS=5000 STRIDE=1 TIMEOUT=4h tests/lab/run $$(sed -n '/^# kernel: own-debug$$/F' tests/lab/*.sh | xargs -n 1 basename -s .sh)

bench-guard: build ## both regulators' figures, measured in the lab: out/bench-guard
	$(MEMWARDEN) guard bench --on lab --backend module,user --replace --out out/bench-guard

# Without libFuzzer's compiler (clang) there is nothing to run.
FUZZ_SECONDS := 60
fuzz: ## memguard's parsers against arbitrary text for a minute (needs clang)
	mkdir -p target/fuzz
	clang -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		-Ipolicy -Ikernel/memguard tests/parse/parse-fuzz.c kernel/memguard/parse.c \
		-o target/fuzz/parse
	target/fuzz/parse -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1

# What any packager takes; the Debian packages are built by these two, too.
PREFIX := /usr/local
SYSCONFDIR := $(if $(filter /usr,$(PREFIX)),/etc,$(PREFIX)/etc)
BASH_COMPLETIONS := $(PREFIX)/share/bash-completion/completions
ZSH_COMPLETIONS := $(PREFIX)/share/zsh/site-functions
FISH_COMPLETIONS := $(PREFIX)/share/fish/vendor_completions.d
UNITS := $(PREFIX)/lib/systemd/system
SHARED := $(PREFIX)/share/memwarden
HEADERS := $(PREFIX)/include/memwarden
DOCUMENTS := $(PREFIX)/share/doc/memwarden
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml)
DKMS_SOURCE := /usr/src/memwarden-$(VERSION)
# The program that is installed. The pages and completions are written by $(MEMWARDEN), which runs here.
PROGRAM = $(MEMWARDEN)

# The pages, and those that they link to.
PAGES = `find docs -type f` README.md ARCHITECTURE.md $(LICENCES) kernel/*/README.md lab/qemu/README.md
LICENCES = LICENSES/*

# The modules' sources for DKMS.
MODULES = `find policy kernel/include $(addprefix kernel/,memguard copytrace cftu swdma mymem) \
		-name Kbuild -o -name '*.[ch]' ! -name '*.mod.c'`

# Quotes for the unit's command if a path in it contains a space.
QUOTE := $(if $(word 3,$(PREFIX) $(SYSCONFDIR)),")

# All users read what root installs, whatever root's umask. install -D and -m set modes themselves.
install: MEMWARDEN := target/dist/memwarden
install: ## memwarden, its manual pages, completions, headers and service, under $(DESTDIR)$(PREFIX)
	@test -x "$(PROGRAM)" || { echo '$(PROGRAM) is missing: make dist makes it' >&2; exit 1; }
	install -D -m 755 "$(PROGRAM)" "$(DESTDIR)$(PREFIX)/bin/memwarden"
	umask 022; "$(MEMWARDEN)" manual "$(DESTDIR)$(PREFIX)/share/man/man1"
	umask 022; mkdir -p "$(DESTDIR)$(BASH_COMPLETIONS)" "$(DESTDIR)$(ZSH_COMPLETIONS)" "$(DESTDIR)$(FISH_COMPLETIONS)"
	umask 022; "$(MEMWARDEN)" completions bash > "$(DESTDIR)$(BASH_COMPLETIONS)/memwarden"
	umask 022; "$(MEMWARDEN)" completions zsh > "$(DESTDIR)$(ZSH_COMPLETIONS)/_memwarden"
	umask 022; "$(MEMWARDEN)" completions fish > "$(DESTDIR)$(FISH_COMPLETIONS)/memwarden.fish"
	for file in share/*; do install -D -m 644 $$file "$(DESTDIR)$(SHARED)/$${file#share/}" || exit; done
	for file in kernel/include/uapi/memwarden/*; do install -D -m 644 -t "$(DESTDIR)$(HEADERS)" $$file || exit; done
	umask 022; mkdir -p "$(DESTDIR)$(UNITS)"
	umask 022; sed -e 's,/usr/bin/memwarden,$(QUOTE)$(PREFIX)/bin/memwarden$(QUOTE),' \
		-e '/^ExecStart=/!s,/etc/memwarden,$(SYSCONFDIR)/memwarden,' \
		-e '/^ExecStart=/s,/etc/memwarden/guard.toml,$(QUOTE)$(SYSCONFDIR)/memwarden/guard.toml$(QUOTE),' \
		packaging/systemd/memwarden-guard.service > "$(DESTDIR)$(UNITS)/memwarden-guard.service"
# Budgets that the administrator has set stay.
	test -e "$(DESTDIR)$(SYSCONFDIR)/memwarden/guard.toml" || \
		install -D -m 644 packaging/systemd/guard.toml "$(DESTDIR)$(SYSCONFDIR)/memwarden/guard.toml"
	for file in $(PAGES); do install -D -m 644 $$file "$(DESTDIR)$(DOCUMENTS)/$$file" || exit; done

# policy/ lies where kernel/memguard/ includes it from.
install-dkms: ## the kernel modules' sources, laid out for DKMS, under $(DESTDIR)/usr/src
	for file in $(MODULES); do install -D -m 644 $$file "$(DESTDIR)$(DKMS_SOURCE)/$$file" || exit; done
	install -m 644 packaging/dkms/Kbuild "$(DESTDIR)$(DKMS_SOURCE)/Kbuild"
	umask 022; sed 's/#MODULE_VERSION#/$(VERSION)/' packaging/dkms/dkms.conf > "$(DESTDIR)$(DKMS_SOURCE)/dkms.conf"
	@echo 'next: dkms install memwarden/$(VERSION)'

# removed FOLDER,FILES: the shell's command that removes these files in a folder, and then its empty folders and itself.
define removed
for file in $(2); do \
	rm -f "$(1)/$$file" || exit; \
	case $$file in */*) (cd "$(1)/$${file%/*}" 2>&- && cd "$(1)" && rmdir -p --ignore-fail-on-non-empty "$${file%/*}") ;; esac; \
done; \
test ! -d "$(1)" || rmdir --ignore-fail-on-non-empty "$(1)"
endef

# Files of others in these folders stay, and so does the administrator's budget file.
uninstall: ## remove what install installed, with the same variables
	rm -f "$(DESTDIR)$(PREFIX)/bin/memwarden" "$(DESTDIR)$(PREFIX)/share/man/man1/memwarden.1" \
		"$(DESTDIR)$(PREFIX)"/share/man/man1/memwarden-*.1 "$(DESTDIR)$(BASH_COMPLETIONS)/memwarden" \
		"$(DESTDIR)$(ZSH_COMPLETIONS)/_memwarden" "$(DESTDIR)$(FISH_COMPLETIONS)/memwarden.fish" \
		"$(DESTDIR)$(UNITS)/memwarden-guard.service"
	$(call removed,$(DESTDIR)$(SHARED),$(notdir $(wildcard share/*)))
	$(call removed,$(DESTDIR)$(HEADERS),$(notdir $(wildcard kernel/include/uapi/memwarden/*)))
	$(call removed,$(DESTDIR)$(DOCUMENTS),$(PAGES))

uninstall-dkms: ## remove what install-dkms installed
	$(call removed,$(DESTDIR)$(DKMS_SOURCE),$(MODULES) Kbuild dkms.conf)

deb: ## Debian packages for amd64 and arm64: target/deb
	scripts/build-deb

test-packages: ## they, and make install, tried in a Debian 12 and a Debian 13 chroot
	tests/packages/run

clean: ## what was built (not the lab's cache: memwarden lab clean)
	$(CARGO) clean
