#!/usr/bin/env bash
# Runs the stages of `make test`, all of them also after a failure, and ends with the times and the line
# "N passed, N failed". A stage without tests of its own counts as one.
#
# usage: test.sh [STAGE...]        format lints docs tests release interleavings
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source scripts/stages.sh

cargo=${CARGO:-cargo}

format() {
  $cargo fmt --all --check
}

lints() {
  $cargo clippy --locked --workspace --all-targets -- -D warnings
}

docs() {
  RUSTDOCFLAGS='-D warnings' $cargo doc --locked --workspace --no-deps
}

tests() {
  $cargo test --locked --workspace --no-fail-fast
}

# What is counted and measured of a packet's way: of the build that ships, because checks of the development build would be counted too.
release() {
  $cargo test --locked --release --package testudo-gateway --test instructions --test stage_clock
}

# Every interleaving of the threads that share sequence numbers. Its own target folder: other flags would build everything again.
interleavings() {
  RUSTFLAGS='--cfg loom' $cargo test --locked --profile loom --package testudo-ipsec --lib --target-dir "$target/loom" -- loom_tests
}

run_stages test 'format lints docs tests release interleavings' "$@"
