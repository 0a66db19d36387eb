# Tasks for a fresh clone; `make help` lists them.
#
#   ARGS    options of the program for demo, bench, bench-vpe, bench-host: make demo ARGS='--ipv6 --json'
#   WARRIORS                       for bench-ike:              make bench-ike WARRIORS=5000
#   SECONDS_OF_REKEYS              for bench-rekey:            make bench-rekey SECONDS_OF_REKEYS=20
#   CASES, TURNS, CPU              for bench-peer:             make bench-peer CASES='gcm:64 gcm:imix' TURNS=5
#   ARGS    for bench-ports:                                   make bench-ports ARGS='--ports memif,xdp-native --sizes 64 --json'
#   ARGS    for bench-gpu:                                     make bench-gpu ARGS='--quick --gpu NVIDIA'
#   ARGS    for lab:                                           make lab ARGS='--only 003'
#   ARGS    for interop:                                       make interop ARGS='--budget 30m --only "ah transport"'
#   SECONDS_PER_TARGET, TARGETS    for fuzz:                   make fuzz SECONDS_PER_TARGET=60 TARGETS=inbound
#   STAGES, SKIP                   for audit:                   make audit STAGES='dependencies miri', make audit SKIP=fuzz
#   BOOT_SECONDS, ACCEL            for ike-setup-guest:         make ike-setup-guest ACCEL=kvm
#   PREFIX, DESTDIR                for install:                make install PREFIX=/usr DESTDIR=/tmp/package

ARGS ?=
CASES ?=
WARRIORS ?= 5000
SECONDS_OF_REKEYS ?= 20
SECONDS_PER_TARGET ?= 30
STAGES ?=
SKIP ?=
TARGETS ?=
PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
target_dir = $${CARGO_TARGET_DIR:-target}

.DEFAULT_GOAL := help
.PHONY: help demo test interop bench bench-vpe bench-host bench-ike bench-rekey bench-sas bench-peer bench-ports bench-gpu lab soak ike-setup-guest fuzz audit setup fmt lint docs install picture

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-22s %s\n", $$1, $$2 }'

demo: ## two sites, two gateways, real traffic, an eavesdropper and an attacker, in private namespaces
	@scripts/setup.sh $(if $(findstring dpdk,$(ARGS)),dpdk,demo)
	@$(CARGO) build --release --locked --package testudo
	@scripts/shim.sh "$(target_dir)/release"
	@"$(target_dir)/release/testudo" demo $(ARGS)

test: ## all tests, lints and documentation; what CI runs
	@scripts/setup.sh test
	@scripts/test.sh

interop: ## every protocol, mode and suite with a Linux kernel and with Scapy: a quarter of an hour, goes on where it was stopped; writes docs/INTEROP.md
	@scripts/setup.sh test
	@$(CARGO) test --quiet --locked --package testudo --test linux_kernel -- --matrix $(ARGS)

bench: ## the data path in memory: packets per second, cycles by stage, cost of the cryptography alone
	@scripts/setup.sh demo
	@$(CARGO) build --release --locked --package testudo
	@"$(target_dir)/release/testudo" bench $(ARGS)

bench-vpe: ## VPE beside ESP: the experiments of the paper that describes VPE, in memory
	@scripts/setup.sh demo
	@$(CARGO) build --release --locked --package testudo
	@"$(target_dir)/release/testudo" bench vpe $(ARGS)

lab: ## the figures and tables of the papers measured again, quickly: minutes; goes on where it was stopped; writes testudo-papers/report.html
	@scripts/setup.sh demo
	@$(CARGO) build --release --locked --package testudo
	@"$(target_dir)/release/testudo" lab papers --quick $(ARGS)

bench-host: ## 1, 2 and 8 TCP streams through two gateways, compared with the bare link and, if installed, wireguard-go
	@scripts/setup.sh demo
	@$(CARGO) build --release --locked --package testudo
	@"$(target_dir)/release/testudo" bench host $(ARGS)

bench-ike: ## road warriors at a gateway's socket, and SAs renewed at full rate: how many a second, and how much memory
	@scripts/setup.sh test
	@$(CARGO) test --release --locked --quiet --package testudo --test ike -- --warriors $(WARRIORS)
	@$(CARGO) test --release --locked --quiet --package testudo --test ike_played -- --ignored --nocapture --test-threads=1

bench-rekey: ## two charons renew their SAs under numbered datagrams at half of the rate that two gateways hold: how many are lost
	@scripts/setup.sh test
	@$(CARGO) test --release --locked --quiet --package testudo --test ike -- --rekey $(SECONDS_OF_REKEYS)

soak: ## 10^8 packets between two gateways whose NICs fail at everything: some minutes; memory must not grow
	@$(CARGO) test --release --locked --quiet --package testudo-gateway --test soak -- --ignored --nocapture

bench-sas: ## the worker's rate while SAs are replaced beside full traffic, and how many can be
	@$(CARGO) run --release --locked --quiet --package testudo-gateway --example sa_changes

bench-peer: ## the data path compared with DPDK's ipsec-secgw, on one core; needs root for huge pages
	@scripts/setup.sh peer
	@$(CARGO) build --release --locked --package testudo
	@scripts/bench-peer.sh "$(target_dir)/release/testudo" $(CASES)

bench-ports: ## what a packet costs through TUN and socket, AF_XDP and DPDK's devices, beside ipsec-secgw and forwarders that do nothing; 4 minutes, root for all but DPDK
	@scripts/setup.sh ports
	@$(CARGO) build --release --locked --package testudo
	@$(CARGO) build --release --locked --package testudo-port-xdp --package testudo-port-dpdk --examples
	@scripts/shim.sh "$(target_dir)/release"
	@scripts/bench-ports.sh "$(target_dir)" $(ARGS)

bench-gpu: ## all that is measured of a GPU, by one command: JSON in target/bench-gpu; an hour, minutes with ARGS=--quick
	@scripts/setup.sh demo
	@$(CARGO) build --release --locked --package testudo
	@scripts/bench-gpu.sh "$(target_dir)/release/testudo" "$(target_dir)/bench-gpu" $(ARGS)

ike-setup-guest: ## `testudo ike setup strongswan` in a guest with systemd and AppArmor, a second one as its peer; minutes; needs root for the image
	@scripts/setup.sh guest
	@$(CARGO) build --release --locked --package testudo
	@tests/ike-setup/guest.sh "$(target_dir)/ike-setup-guest"

fuzz: ## run every fuzz target for SECONDS_PER_TARGET seconds
	@scripts/setup.sh fuzz
	@fuzz/run.sh $(SECONDS_PER_TARGET) $(TARGETS)

audit: ## dependencies, Miri, address sanitizer, a minute of each fuzz target: half an hour; installs its tools
	@scripts/setup.sh audit
	@SKIP='$(SKIP)' scripts/audit.sh $(STAGES)

setup: ## install what the demo and the tests need, with apt
	@scripts/setup.sh test

fmt: ## format the sources
	@$(CARGO) fmt --all

lint: ## check formatting and lints; warnings are errors
	@scripts/test.sh format lints

docs: ## build the documentation of the crates
	@RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps
	@echo "open $(target_dir)/doc/testudo/index.html"

install: ## install the program, libtestudo-xfrm.so, man pages, completions and a systemd unit below PREFIX
	@scripts/setup.sh demo
	@$(CARGO) build --release --locked --package testudo
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh

picture: ## draw docs/demo.svg from a run of the demo
	@scripts/setup.sh demo
	@$(CARGO) build --release --locked --package testudo
	@"$(target_dir)/release/testudo" demo --svg docs/demo.svg $(ARGS)
