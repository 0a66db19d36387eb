#!/usr/bin/env bash
# Runs the stages of `make audit`: what takes too long for every change, or needs tools that not everybody has. Ends as `make test` does, with the
# times and the line "N passed, N failed". A stage whose tool is missing is skipped and says what to install.
#
# usage: audit.sh [STAGE...]       dependencies advisories miri asan fuzz
# environment: SKIP="STAGE..."  SECONDS_PER_TARGET=60, of each fuzz target
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/stages.sh

cargo=${CARGO:-cargo}
tools=${CARGO_TARGET_DIR:-$PWD/target}/audit-tools/bin
host=$(rustc -vV | sed -n 's/^host: //p')

# The last line is what the table shows.
skip() { echo "$*"; return $SKIPPED; }

deny() { "$tools/cargo-deny" --locked "$@"; }
has_deny() { [[ -x $tools/cargo-deny ]]; }

# Licences, sources, banned crates: deny.toml.
dependencies() {
  has_deny || skip 'cargo-deny is missing: scripts/setup.sh audit' || return
  deny check --hide-inclusion-graph licenses bans sources
}

# Known holes, by RustSec's list, which is fetched anew where there is a network.
advisories() {
  has_deny || skip 'cargo-deny is missing: scripts/setup.sh audit' || return
  if ! deny fetch db && ! compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/*/crates" >/dev/null; then
    skip 'the list of advisories cannot be fetched, and there is no older one' || return
  fi
  deny --offline check --hide-inclusion-graph advisories
}

# The unsafe code that needs neither kernel nor vector instructions, interpreted: out of bounds, uninitialised, aliasing.
miri() {
  $cargo +nightly miri --version >/dev/null 2>&1 || skip "Miri is missing: scripts/setup.sh audit" || return
  # Files of proptest's failures are outside of what Miri isolates; a few cases each are minutes already.
  MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=8 \
    $cargo +nightly miri test --locked --package testudo-packet --target-dir "$target/miri"
}

# Engines and ports beside the kernel and a foreign library, with every access checked. With the toolchain of the product, which ships the run
# time of the sanitizer and needs to be told that it may use it.
asan() {
  local packages=(conformance engine-vaes engine-ipsec-mb port-tun port-socket packet) flags=() package
  for package in "${packages[@]}"; do flags+=(--package "testudo-$package"); done
  # With --target, build scripts and procedural macros are built without it.
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
