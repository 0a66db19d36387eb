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

# Programs whose tests take longest, wait most of the time, for emulated machines or for daemons and timers, and
# measure nothing.
waiting='linux_kernel linux_gateway linux_peer ip_xfrm xdp_judges dpdk_judges ike host_mode'

# These run beside all others, whose output comes first.
tests() {
  local pid status=0
  # Also what no test is built with, such as libFuzzer's crates: licences are looked at without a network.
  $cargo fetch --locked || return
  $cargo test --locked --workspace --no-run || return
  # In a process group of their own, which ends with this stage: a background job ignores Ctrl-C.
  set -m
  run_waiting >"$target/test-waiting.log" 2>&1 &
  pid=$!
  set +m
  trap 'kill -- "-$pid" 2>/dev/null; exit 130' INT TERM
  TESTUDO_TESTS_APART=$waiting $cargo test --locked --workspace --no-fail-fast || status=$?
  wait "$pid" || status=$?
  cat "$target/test-waiting.log"
  return "$status"
}

run_waiting() {
  local program status=0
  for program in $waiting; do
    $cargo test --locked --workspace --test "$program" || status=$?
  done
  return "$status"
}

# Instruction counts and stage times: on the release build, because the checks of a debug build would be
# counted too.
release() {
  $cargo test --locked --release --package testudo-gateway --test instructions --test stage_clock
}

# Every interleaving of the threads that share sequence numbers, of those with a ring between them, and of those
# between which an engine changes hands. It has its own target folder, because other flags would rebuild everything.
interleavings() {
  RUSTFLAGS='--cfg loom' $cargo test --locked --profile loom --package testudo-packet --package testudo-ipsec --package testudo-engine-cores --package testudo-engine-device-thread --lib --target-dir "$target/loom" -- loom_tests
}

run_stages test 'format lints docs tests release interleavings' "$@"
