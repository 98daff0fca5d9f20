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
check: ## formatting, lints, unit and property tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo test --workspace --locked

.PHONY: test
test: ## everything CI runs
	cargo test --workspace --locked
