#!/usr/bin/env bash
# The simulation of the proof: SCHEDULES seeded schedules of faults (100000), and every seeded bug caught; every order
# of events of the model of its turns; and the whole sweeps of hold and refill.
# Usage: tests/simulation.sh [SCHEDULES]
#
# Only the reconciler is optimized for it: its dependencies are those of every other test.
set -euo pipefail
cd "$(dirname "$0")/.."
export HOLDFAST_SIM_SCHEDULES=${1:-100000}
begun=$SECONDS
cargo test --workspace --locked --lib --config profile.dev.package.holdfast-reconciler.opt-level=3 --no-run
echo "built in $((SECONDS - begun)) s"
begun=$SECONDS
HOLDFAST_NO_BED=1 cargo test --workspace --locked --lib \
  --config profile.dev.package.holdfast-reconciler.opt-level=3 -- sim::tests --ignored --nocapture
HOLDFAST_NO_BED=1 cargo test --workspace --locked --lib \
  --config profile.dev.package.holdfast-reconciler.opt-level=3 -- models::turns --ignored --nocapture
# Hold and refill: every write and call fails, every hand meddles, after each pass.
HOLDFAST_NO_BED=1 cargo test --workspace --locked --lib \
  --config profile.dev.package.holdfast-reconciler.opt-level=3 -- hold::tests refill::tests service::tests
echo "ran in $((SECONDS - begun)) s"
