# Runs stages, which are functions of the script that sources this file. A failed stage does not stop the
# others. The output ends with their times and the line "N passed, N failed". A stage without tests counts as
# one test. A stage that returns SKIPPED prints the reason and is not counted.
#
#   run_stages NAME "KNOWN STAGE..." [STAGE...]
#
# Logs: target/NAME.log and target/NAME-STAGE.log; the last line is also in target/NAME-summary.

SKIPPED=77

run_stage() { # NAME STAGE
  local started=$SECONDS status ok bad results
  printf '\n=== %s: %s\n' "$(date +%T)" "$2"
  "$2" 2>&1 </dev/null | tee "$target/$1-$2.log"
  status=${PIPESTATUS[0]}
  cat "$target/$1-$2.log" >>"$log"
  read -r ok bad < <(awk '/^test result:/ { for (i = 1; i < NF; i++) { if ($(i + 1) == "passed;") ok += $i; if ($(i + 1) == "failed;") bad += $i } }
    END { print ok + 0, bad + 0 }' "$target/$1-$2.log")
  if ((status == SKIPPED)); then
    times+=$(printf '%-14s %5d s   skipped: %s' "$2" $((SECONDS - started)) "$(tail -n 1 "$target/$1-$2.log")")$'\n'
    return
  fi
  # A stage that could not be built, or has no tests, counts as one test.
  if ((status != 0 && bad == 0)); then bad=1; elif ((status == 0 && ok == 0)); then ok=1; fi
  passed=$((passed + ok)) failed=$((failed + bad))
  results=$(printf '%-14s %5d s   %d passed, %d failed' "$2" $((SECONDS - started)) "$ok" "$bad")
  times+="$results"$'\n'
}

# The names of the tests that failed, what each said when it panicked, and errors of the compiler, at most 40
# lines: where only the end of the output is kept, that is enough to know what to look at.
show_failures() { # LOG
  echo
  grep -aE -A 3 "^test .* FAILED\$|^---- .* ----\$|^thread '.* panicked at |^error(\[|:)|^Diff in " "$1" |
    awk '/ \.\.\. ok$|^--$|^stack backtrace|^note: / { next } !seen[$0]++' | cut -c 1-200 | head -n 40
}

run_stages() { # NAME KNOWN [STAGE...]
  local name=$1 known=$2 stage
  shift 2
  target=${CARGO_TARGET_DIR:-$PWD/target} log=$target/$name.log times='' passed=0 failed=0
  mkdir -p "$target"
  : >"$log"
  for stage in ${*:-$known}; do
    [[ " $known " == *" $stage "* ]] || { echo "$name.sh: no stage '$stage': $known" >&2; exit 2; }
  done
  for stage in ${*:-$known}; do run_stage "$name" "$stage"; done
  printf '\n%s' "$times"
  if ((failed)); then
    show_failures "$log"
    printf '\nto find the failures: grep -nE "FAILED|^error|^Diff" %s\n' "$log"
  fi
  echo "$passed passed, $failed failed" | tee "$target/$name-summary"
  ((failed == 0))
}
