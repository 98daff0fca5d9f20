#!/usr/bin/env bash
# What `make test` runs: lints, the product as the bed installs it, every test; ends with one line of totals.
set -uo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

failed_step=
step() { # step NAME COMMAND...
  local name=$1; shift
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee -a "$log"
  [ "${PIPESTATUS[0]}" = 0 ] || failed_step="${failed_step:+$failed_step, }$name"
}

step 'formatting' cargo fmt --all --check
step 'lints' cargo clippy --workspace --all-targets --locked -- -D warnings
# Of the whole workspace, so that the tests find every dependency built with the same features.
step 'the product' cargo build --locked --workspace --bins
step 'tests' cargo test --workspace --locked --no-fail-fast

passed=$(grep -oE '^test result: .* [0-9]+ passed' "$log" | grep -oE '[0-9]+ passed' | awk '{n += $1} END {print n + 0}')
failed=$(grep -oE '^test result: .*; [0-9]+ failed' "$log" | grep -oE '[0-9]+ failed' | awk '{n += $1} END {print n + 0}')
[ -z "$failed_step" ] || printf '\nfailed: %s\n' "$failed_step"
echo
echo "$passed passed, $failed failed"
[ -z "$failed_step" ] && [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
