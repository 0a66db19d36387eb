#!/usr/bin/env bash
# Runs the stages of `make test`. A failed stage does not stop the others. The output ends with the times and
# the line "N passed, N failed". A stage without tests counts as one test.
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

# Instruction counts and stage times: on the release build, because the checks of a debug build would be
# counted too.
release() {
  $cargo test --locked --release --package testudo-gateway --test instructions --test stage_clock
}

# Every interleaving of the threads that share sequence numbers. It has its own target folder, because other
# flags would rebuild everything.
interleavings() {
  RUSTFLAGS='--cfg loom' $cargo test --locked --profile loom --package testudo-ipsec --lib --target-dir "$target/loom" -- loom_tests
}

run_stages test 'format lints docs tests release interleavings' "$@"
