# SPDX-License-Identifier: MIT OR Apache-2.0
# The finer targets. A person needs two commands only, ./demo and ./test, which
# also install what all of this needs (scripts/install-packages).

export PATH := /usr/bin:$(PATH)
CARGO := cargo
GUEST := aarch64-unknown-linux-gnu
MEMWARDEN := target/release/memwarden

.PHONY: help build guest modules test test-full bench-guard fuzz dkms clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' $(MAKEFILE_LIST) | expand -t 16

build: ## memwarden for this machine, in target/release
	$(CARGO) build --release --locked -p memwarden

guest: ## memwarden for the lab's guest: static, arm64
	$(CARGO) build --release --locked -p memwarden --target $(GUEST) --no-default-features

modules: build ## kernel modules against 16 of Debian's kernels and ours, every warning a failure
	$(MEMWARDEN) lab modules

test: ## what ./test does
	./test

test-full: ## the same with 1000 module loads, 10^6 operations a device, 10^6 random copies, and all on the debug kernel
	FULL=1 CYCLES=1000 WRITES=100000 OPERATIONS=1000000 TRANSFERS=5000 STRIDE=1 HOLD=60 TIMEOUT=4h ./test
	KERNEL=own-debug CLOCK=free TIMEOUT=4h tests/lab/run

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

# policy/ lies where kernel/memguard/ includes it from.
VERSION := 0.1.0
DKMS_SOURCE := $(DESTDIR)/usr/src/memguard-$(VERSION)
dkms: ## memguard's source laid out for DKMS, under $(DESTDIR)/usr/src
	mkdir -p $(DKMS_SOURCE)/kernel
	cp -r policy $(DKMS_SOURCE)/
	cp -r kernel/memguard $(DKMS_SOURCE)/kernel/
	sed 's/^PACKAGE_VERSION=.*/PACKAGE_VERSION="$(VERSION)"/' packaging/dkms/dkms.conf > $(DKMS_SOURCE)/dkms.conf
	@echo 'next: dkms install memguard/$(VERSION)'

clean: ## what was built (not the lab's cache: memwarden lab clean)
	$(CARGO) clean
