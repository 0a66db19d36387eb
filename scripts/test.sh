#!/usr/bin/env bash
# Runs the stages of `make test`, all of them also after a failure, and ends with the times and the line
# "N passed, N failed". A stage without tests of its own counts as one.
#
# usage: test.sh [STAGE...]        format lints docs tests release interleavings
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
log=$target/test.log
summary=$target/test-summary
cargo=${CARGO:-cargo}
mkdir -p "$target"
: >"$log"

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

passed=0 failed=0 times=''

run_stage() { # STAGE
  local started=$SECONDS status results
  printf '\n=== %s: %s\n' "$(date +%T)" "$1"
  "$1" 2>&1 </dev/null | tee "$target/test-$1.log"
  status=${PIPESTATUS[0]}
  cat "$target/test-$1.log" >>"$log"
  read -r ok bad < <(awk '/^test result:/ { for (i = 1; i < NF; i++) { if ($(i + 1) == "passed;") ok += $i; if ($(i + 1) == "failed;") bad += $i } }
    END { print ok + 0, bad + 0 }' "$target/test-$1.log")
  # A stage that could not be built, or has no tests to count, passes or fails as one.
  if ((status != 0 && bad == 0)); then bad=1; elif ((status == 0 && ok == 0)); then ok=1; fi
  passed=$((passed + ok)) failed=$((failed + bad))
  results=$(printf '%-14s %5d s   %d passed, %d failed' "$1" $((SECONDS - started)) "$ok" "$bad")
  times+="$results"$'\n'
}

stages=("$@")
((${#stages[@]})) || stages=(format lints docs tests release interleavings)
for stage in "${stages[@]}"; do
  case $stage in
    format | lints | docs | tests | release | interleavings) run_stage "$stage" ;;
    *) echo "test.sh: no stage '$stage'" >&2; exit 2 ;;
  esac
done

printf '\n%s' "$times"
if ((failed)); then printf '\nwhat failed: grep -nE "FAILED|^error|^Diff" %s\n' "$log"; fi
echo "$passed passed, $failed failed" | tee "$summary"
((failed == 0))
