# garage-holdfast: everything a developer types. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: assets
assets: ## build the control plane and Garage that the bed runs (once, about 20 minutes)
	@tests/assets.sh

.PHONY: check
check: ## formatting, lints, unit and property tests; needs no assets
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo test --workspace --exclude holdfast-tests --locked
	cargo test --package holdfast-tests --lib --locked

# The bed runs the product's binary, which `cargo test` alone would not build.
.PHONY: test
test: assets ## everything CI runs; the last line says how many tests passed
	cargo build --workspace --bins --locked
	@set -o pipefail; cargo test --workspace --locked --no-fail-fast 2>&1 | awk ' \
	  { print; fflush() } \
	  /^test result:/ { passed += $$4; failed += $$6 } \
	  END { printf "%d tests passed, %d failed\n", passed, failed }'

.PHONY: demo
demo: assets ## the product's story on a bed (REAL_TIMES=1: its own waiting times; KEEP=1: leave it running)
	@cargo run --quiet --locked --package holdfast-tests --bin holdfast-bed -- demo \
	  $(if $(REAL_TIMES),--real-times) $(if $(KEEP),--keep) $(if $(GARAGE),--garage $(GARAGE))
