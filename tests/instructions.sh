#!/usr/bin/env bash
# Counts the instructions of the main paths and compares them with those that are kept. They do not depend on what
# else the machine does; they do depend on the compiler, so one other than theirs is only compared, not judged.
#
#   tests/instructions.sh           compares; fails when a path takes over 3 % more
#   tests/instructions.sh update    keeps what it counted
set -euo pipefail
cd "$(dirname "$0")/.."
kept=tests/instructions.txt
command -v valgrind >/dev/null || { echo "valgrind is missing: install it (Debian: apt-get install valgrind)"; exit 1; }
built=$(cargo bench --locked --package holdfast-crds --bench instructions --no-run 2>&1) || { echo "$built"; exit 1; }
program=$(sed -n 's/.*Executable .*(\(.*\))$/\1/p' <<<"$built")
[ -n "$program" ] || { echo "the benchmark was not built: $built"; exit 1; }
here=$(rustc --version)

counted() { # counted PATH TIMES
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

worse=0 lines=$here
printf '%-18s %14s %14s %8s\n' path 'instructions' kept ratio
for path in $("$program"); do
  # The difference leaves out what starting costs.
  one=$(counted "$path" 10) more=$(counted "$path" 110)
  now=$(((more - one) / 100))
  lines+=$'\n'"$path $now"
  before=$(awk -v path="$path" '$1 == path { print $2 }' "$kept" 2>/dev/null || true)
  ratio=$(awk -v now="$now" -v before="${before:-0}" 'BEGIN { print before ? now / before : "new" }')
  printf '%-18s %14s %14s %8.6s\n' "$path" "$now" "${before:--}" "$ratio"
  awk -v ratio="$ratio" 'BEGIN { exit !(ratio == "new" || ratio > 1.03) }' && worse=1
done
if [ "${1:-}" = update ]; then printf '%s\n' "$lines" >"$kept"; exit 0; fi
if [ "$(head -1 "$kept")" != "$here" ]; then
  echo "counted with $here, kept with $(head -1 "$kept"): not judged"
elif [ "$worse" = 1 ]; then
  echo "a path takes over 3 % more instructions than tests/instructions.txt says: mend it, or say why and run tests/instructions.sh update"
  exit 1
fi
