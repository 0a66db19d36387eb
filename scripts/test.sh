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

# Programs whose tests take longest, wait most of the time, and measure nothing: for emulated machines, and for
# daemons and timers. Each group runs one program after the other, beside the other group and all other tests.
guests='linux_kernel linux_gateway linux_peer ip_xfrm xdp_judges dpdk_judges'
daemons='ike host_mode'

# The output of those that run apart comes last.
tests() {
  local group pid pids=() status=0
  # Also what no test is built with, such as libFuzzer's crates: licences are looked at without a network.
  $cargo fetch --locked || return
  $cargo test --locked --workspace --no-run || return
  # Each in a process group of its own, which ends with this stage: a background job ignores Ctrl-C.
  set -m
  for group in guests daemons; do
    run_each ${!group} >"$target/test-$group.log" 2>&1 &
    pids+=($!)
  done
  set +m
  trap 'kill -- "${pids[@]/#/-}" 2>/dev/null; exit 130' INT TERM
  TESTUDO_TESTS_APART="$guests $daemons" $cargo test --locked --workspace --no-fail-fast || status=$?
  for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
  cat "$target/test-guests.log" "$target/test-daemons.log"
  return "$status"
}

run_each() { # PROGRAM...
  local program status=0
  for program in "$@"; do
    $cargo test --locked --workspace --test "$program" || status=$?
  done
  return "$status"
}

# Instruction counts and stage times: on the release build, because the checks of a debug build would be
# counted too.
release() {
  $cargo test --locked --release --package testudo-gateway --test instructions --test stage_clock
}

# Every interleaving of the threads that share sequence numbers, and of those with a ring between them. It has
# its own target folder, because other flags would rebuild everything.
interleavings() {
  RUSTFLAGS='--cfg loom' $cargo test --locked --profile loom --package testudo-packet --package testudo-ipsec --package testudo-engine-cores --lib --target-dir "$target/loom" -- loom_tests
}

run_stages test 'format lints docs tests release interleavings' "$@"
