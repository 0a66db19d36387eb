#!/bin/sh
# Builds the fuzz targets with libFuzzer's instrumentation, on stable Rust, and runs each for
# SECONDS_PER_TARGET.
#
#   fuzz/run.sh SECONDS_PER_TARGET [TARGET...]
#
# Prints a table of results; the exit code is 1 if a target crashed. The input that crashed it is kept in
# fuzz/artifacts/TARGET/, and the table has the command that reproduces it. The corpus that runs gather stays
# in fuzz/target/; only the seeds in fuzz/corpus/ are part of the repository.
set -u

seconds=${1:-}
case $seconds in
    '' | *[!0-9]*) echo "usage: fuzz/run.sh SECONDS_PER_TARGET [TARGET...]" >&2; exit 2 ;;
esac
shift
cd "$(dirname "$0")" || exit 2
for tool in cargo c++; do
    command -v "$tool" >/dev/null || { echo "fuzz/run.sh: $tool is missing (Debian: apt install g++; Rust: rustup.rs)" >&2; exit 2; }
done

host=$(rustc -vV | sed -n 's/^host: //p')
# With --target, the flags do not apply to build scripts and procedural macros.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing ${FUZZ_RUSTFLAGS:-}" \
    cargo build --locked --profile fuzz --package testudo-fuzz --features libfuzzer --bins --target "$host" --target-dir target || exit 2

targets=${*:-$(sed -n 's/^name = "\(.*\)"$/\1/p' Cargo.toml | grep -v '^testudo-fuzz$')}
status=0
table=$(printf '%-24s %12s %10s %9s  %s' target runs runs/s features result)
for target in $targets; do
    binary=target/$host/fuzz/$target
    gathered=target/corpus/$target
    artifacts=artifacts/$target
    log=target/$target.log
    mkdir -p "$gathered" "$artifacts"
    echo "$target: $seconds s"
    if "$binary" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1 \
        -artifact_prefix="$artifacts/" "$gathered" "corpus/$target" >"$log" 2>&1; then
        result=ok
    else
        status=1
        input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        result="FAILED, reproduce: fuzz/$binary fuzz/$input"
        grep -m 3 -E 'panicked|ERROR' -A 2 "$log"
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    speed=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
    features=$(sed -n 's/.* ft: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
    table="$table
$(printf '%-24s %12s %10s %9s  %s' "$target" "${runs:--}" "${speed:--}" "${features:--}" "$result")"
    rmdir "$artifacts" 2>/dev/null
done
rmdir artifacts 2>/dev/null
printf '\n%s\n' "$table"
exit $status
