# shellcheck shell=bash
# Part of ./dev: runs parts of the tests one after the other, and counts their results. A part `name` is the
# function test_name, which leaves $results/name.xml (JUnit) or name.txt (a line per check).

passed=0 failed=0 skipped=0

junit_count() { grep -o -m1 "\b$2=\"[0-9]*\"" "$1" | head -1 | tr -dc 0-9; } # FILE ATTRIBUTE

# Adds the counts of a part to the totals; a part that failed without a failed test counts as one.
add_counts() { # PART STATUS
  local tests=0 bad=0 skip=0 file=$results/$1
  if [[ -f $file.xml ]]; then
    tests=$(junit_count "$file.xml" tests)
    bad=$(($(junit_count "$file.xml" failures) + $(junit_count "$file.xml" errors || echo 0)))
    skip=$(junit_count "$file.xml" skipped)
  elif [[ -f $file.txt ]]; then
    tests=$(wc -l <"$file.txt")
    bad=$(grep -c '^fail' "$file.txt" || true)
  fi
  (($2 == 0 || bad > 0)) || bad=1 tests=$((tests + 1))
  counts="$((tests - bad - skip)) passed, $bad failed${skip:+, $skip skipped}"
  passed=$((passed + tests - bad - skip)) failed=$((failed + bad)) skipped=$((skipped + skip))
}

count_parts() {
  local part status begin summary=() counts
  rm -rf "$results"
  mkdir -p "$results"
  "$python" scripts/test_durations.py copy "$results/durations.json"
  export ZERORUN_TEST_DURATIONS=$results/durations.json
  export ZERORUN_STALL_FILE=$results/stall.json # instead of a file in /tmp for each test with a stall
  for part in "$@"; do
    say "test: $part"
    begin=$SECONDS
    set +e # in a subshell outside of any condition, so that `set -e` holds inside
    (set -e; "test_$part")
    status=$?
    set -e
    add_counts "$part" "$status"
    summary+=("$(printf '%-8s %4d s  %s' "$part" $((SECONDS - begin)) "$counts")")
  done
  "$python" scripts/test_durations.py keep "$results"
  ((failed == 0)) || "$python" scripts/test_durations.py failed "$results"
  printf '\n%s\n' "${summary[@]}"
  printf '%d passed, %d failed, %d skipped in %d s\n' "$passed" "$failed" "$skipped" "$SECONDS"
  ((failed == 0))
}
