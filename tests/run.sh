#!/usr/bin/env bash
# What `make test` runs: lints, the product as the bed installs it, every test; ends with one line of totals.
#
# Suites on the bed mostly wait, so three lanes of them run beside each other, each suite in namespaces of its
# own, and what computes runs beside them with what they leave. A suite that failed is run once more, alone, and
# what passed only then is named: a machine with two cores can starve a real control plane. Every other failure is
# final.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=$(mktemp -d)
aside=
trap '[ -z "$aside" ] || kill -- "-$aside" 2>/dev/null; rm -rf "$logs"' EXIT
lanes=('service' 'site admission bed agent' 'operate service_faults traffic')

# Since CI began, with what it had to build first.
before=$(($(date +%s) - ${HOLDFAST_BEGAN:-$(date +%s)}))

failed_step=
fail() { failed_step="${failed_step:+$failed_step, }$1"; }
step() { # step NAME COMMAND...: its output is shown and kept
  local name=$1; shift
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$logs/$name.log"
  [ "${PIPESTATUS[0]}" = 0 ] || { fail "$name"; return 1; }
}
declare -A programs=()
suite() { # suite NAME LOG: not by cargo, which would wait for the build of the simulation
  (cd tests && "${programs[$1]}") >"$2" 2>&1
}
lane() { # lane SUITE...: names those that failed in a file, with the seconds they took
  local name begun
  for name in "$@"; do
    begun=$SECONDS
    suite "$name" "$logs/suite-$name.log" || echo "$name $((SECONDS - begun))" >>"$logs/failed"
    printf '\n== suite %s\n%s\n' "$name" "$(cat "$logs/suite-$name.log")"
  done
}
count() { cat "$logs"/*.log | grep -oE '^test result: .*' | grep -oE "[0-9]+ $1" | awk '{n += $1} END {print n + 0}'; }

step formatting cargo fmt --all --check
# Advisories need their database, which is not reachable everywhere: the workflow asks it.
step 'bans, licences and sources of the dependencies' "$(tests/assets.sh path cargo-deny)" --locked check bans licenses sources
step lints cargo clippy --workspace --all-targets --locked -- -D warnings
# With the tests and of the whole workspace: alone, every dependency would be built twice, with other features.
if step 'the product' cargo build --locked --workspace --bins --tests; then
  HOLDFAST_NO_BED=1 step 'unit and property tests' cargo test --workspace --locked --no-fail-fast
  # With features of its own, so that the tests run what is shipped.
  step 'passes, in short' cargo test --workspace --locked --features holdfast-reconciler/simulation --bench passes
  while read -r name program; do
    programs[$name]=$program
  done < <(cargo test --workspace --locked --no-run --message-format=json 2>/dev/null |
    sed -nE 's|.*/tests/Cargo\.toml","target":\{"kind":\["test"\][^}]*"name":"([a-z_]+)".*"executable":"([^"]+)".*|\1 \2|p')

  # In a session of its own, with the least weight that the scheduler gives: it must not starve a control plane.
  setsid bash -c '
    { echo 19 >/proc/self/autogroup; } 2>/dev/null; renice -n 19 $$ >/dev/null
    if command -v valgrind >/dev/null; then
      tests/instructions.sh >"$0/instructions.log" 2>&1 || touch "$0/instructions-failed"
    else
      echo "valgrind is missing: instructions are not counted" >"$0/instructions.log"
    fi
    tests/simulation.sh 100000 >"$0/simulation.log" 2>&1 || touch "$0/simulation-failed"
  ' "$logs" &
  aside=$!
  touch "$logs/failed"
  for suites in "${lanes[@]}"; do
    # shellcheck disable=SC2086 # a list of words
    lane $suites &
  done
  wait
  aside=
  printf '\n== instructions\n%s\n\n== simulation\n%s\n' \
    "$(tail -n 8 "$logs/instructions.log")" "$(cat "$logs/simulation.log")"
  for name in instructions simulation; do
    [ ! -e "$logs/$name-failed" ] || fail "$name"
  done
  while read -r name took; do
    # CI ends after 90 minutes, the assets of a new machine included: what cannot end before that is not begun.
    if [ "$((SECONDS + before + took))" -gt 5100 ]; then
      printf '\n== suite %s is not run once more, it is late\n' "$name"
      fail "suite $name"
      continue
    fi
    printf '\n== once more: suite %s\n' "$name"
    mv "$logs/suite-$name.log" "$logs/first-run-of-$name"
    if suite "$name" "$logs/suite-$name.log"; then
      printf 'passed only on the second run:\n'
      grep -E '^test .*FAILED$|^    [a-z_]+$' "$logs/first-run-of-$name" | sort -u
    else
      fail "suite $name"
    fi
    cat "$logs/suite-$name.log"
  done <"$logs/failed"
fi

passed=$(count passed)
failed=$(count failed)
[ -z "$failed_step" ] || printf '\nfailed: %s\n' "$failed_step"
echo
echo "$passed passed, $failed failed"
[ -z "$failed_step" ] && [ "$passed" -gt 0 ]
