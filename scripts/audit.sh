#!/usr/bin/env bash
# Runs the stages of `make audit`: checks that take too long for every change or need uncommon tools. Ends
# like `make test`, with the times and the line "N passed, N failed". A stage whose tool is missing is skipped
# and says what to install.
#
# usage: audit.sh [STAGE...]       dependencies advisories miri asan fuzz
# environment: SKIP="STAGE..."  SECONDS_PER_TARGET=60 (for each fuzz target)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/stages.sh

cargo=${CARGO:-cargo}
tools=${CARGO_TARGET_DIR:-$PWD/target}/audit-tools/bin
host=$(rustc -vV | sed -n 's/^host: //p')

# The table of times shows the last line that a skipped stage prints.
skip() { echo "$*"; return $SKIPPED; }

deny() { "$tools/cargo-deny" --locked "$@"; }
has_deny() { [[ -x $tools/cargo-deny ]]; }

# Licences, sources, banned crates: deny.toml.
dependencies() {
  has_deny || skip 'cargo-deny is missing: scripts/setup.sh audit' || return
  deny check --hide-inclusion-graph licenses bans sources
}

# Known vulnerabilities, from RustSec's database, which is updated if there is a network.
advisories() {
  has_deny || skip 'cargo-deny is missing: scripts/setup.sh audit' || return
  if ! deny fetch db && ! compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/*/crates" >/dev/null; then
    skip 'the advisory database cannot be fetched, and there is no older copy' || return
  fi
  deny --offline check --hide-inclusion-graph advisories
}

# Interprets the unsafe code that needs neither kernel nor vector instructions, and detects out-of-bounds
# accesses, uninitialised reads and aliasing violations.
miri() {
  $cargo +nightly miri --version >/dev/null 2>&1 || skip "Miri is missing: scripts/setup.sh audit" || return
  # proptest's regression files are outside Miri's isolation; a few cases per test already take minutes.
  MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=8 \
    $cargo +nightly miri test --locked --package testudo-packet --target-dir "$target/miri"
}

# Engines and ports, which share memory with the kernel and a foreign library, with every access checked. The
# project's toolchain ships the sanitizer's runtime; RUSTC_BOOTSTRAP allows the flag.
asan() {
  local packages=(conformance engine-vaes engine-ipsec-mb port-tun port-socket packet) flags=() package
  for package in "${packages[@]}"; do flags+=(--package "testudo-$package"); done
  # With --target, build scripts and procedural macros are built without the sanitizer.
  RUSTC_BOOTSTRAP=1 RUSTFLAGS='-Zsanitizer=address' \
    $cargo test --locked --target "$host" --target-dir "$target/asan" --lib --tests --no-fail-fast "${flags[@]}"
}

fuzz() {
  command -v c++ >/dev/null || skip 'c++ is missing: scripts/setup.sh audit' || return
  local status=0
  fuzz/run.sh "${SECONDS_PER_TARGET:-60}" || status=1
  return $status
}

known='dependencies advisories miri asan fuzz'
wanted=()
for stage in ${*:-$known}; do [[ " ${SKIP:-} " == *" $stage "* ]] || wanted+=("$stage"); done
((${#wanted[@]})) || { echo "audit.sh: every stage is skipped" >&2; exit 2; }
run_stages audit "$known" "${wanted[@]}"
