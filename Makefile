# garage-holdfast: everything that a developer types.
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

.PHONY: assets
assets: ## build the control plane, Garage and the tools that tests run (once, about 25 minutes on 2 cores)
	@tests/assets.sh

# Not by `cargo run`: for one package alone it builds every dependency again, with other features.
.PHONY: demo
demo: assets ## the story on one terminal; KEEP=1 leaves it running, REAL_TIMES=1 uses the product's own waits
	@cargo build --locked --workspace --bins --tests
	@$${CARGO_TARGET_DIR:-target}/debug/holdfast-bed demo \
	  $(if $(REAL_TIMES),--real-times) $(if $(KEEP),--keep) $(if $(GARAGE),--garage $(GARAGE))

.PHONY: test
test: assets ## everything that CI runs; the last line says how many tests passed
	@tests/run.sh

.PHONY: check
check: ## formatting, lints, unit and property tests; no bed
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo build --locked --workspace --bins --tests
	HOLDFAST_NO_BED=1 cargo test --workspace --locked

.PHONY: image
image: ## the container image from a release build, as an OCI archive; no container engine needed
	@cargo build --locked --release
	@target=$$(realpath -m "$${CARGO_TARGET_DIR:-target}"); image/archive.sh "$$target/release" "$$target/image/garage-holdfast.tar"

.PHONY: docs
docs: assets ## the documentation as a site, in target/book
	@book=$$(realpath -m "$${CARGO_TARGET_DIR:-target}")/book; "$$(tests/assets.sh path mdbook)" build --dest-dir "$$book" docs

.PHONY: fuzz
fuzz: ## fuzz conversion, annotations, reviews and manifests, SECONDS each (600); needs nightly and cargo-fuzz
	@cd tests/fuzz && for target in conversion annotations reviews manifests; do \
	  cargo +nightly fuzz run $$target -- -max_total_time=$(or $(SECONDS),600) || exit 1; done

.PHONY: bench
bench: ## what admission, conversion, the proof and whole passes cost: medians and ratios; AGAINST=https://HOST:PORT compares with another webhook server
	@out=$$(realpath -m "$${CARGO_TARGET_DIR:-target}")/bench && mkdir -p "$$out" && \
	  cargo bench --locked --package holdfast-webhook --bench serving -- $(or $(SECONDS),10) --rounds $(or $(ROUNDS),3) \
	    --json "$$out/serving.json" $(if $(AGAINST),--against $(AGAINST))
	@cargo bench --locked --package holdfast-crds --bench conversion
	@cargo bench --locked --package holdfast-reconciler --features simulation --bench proof
	@out=$$(realpath -m "$${CARGO_TARGET_DIR:-target}")/bench && \
	  cargo bench --locked --package holdfast-reconciler --features simulation --bench passes -- \
	    --rounds $(or $(ROUNDS),3) --json "$$out/passes.json"

.PHONY: soak
soak: ## MINUTES (60) of disruptions by SEED (1), the proof on failing disks and nodes and with the real waits, the model of Garage against Garage, SCHEDULES simulated (1000000), the oldest API server
	@cargo build --locked --workspace --bins --tests
	@$${CARGO_TARGET_DIR:-target}/debug/holdfast-bed soak --minutes $(or $(MINUTES),60) --seed $(or $(SEED),1)
	cargo test --locked --workspace --test proof --test federation
	cargo test --locked --workspace --features holdfast-tests/simulation --test model
	HOLDFAST_REAL_TIMES=1 cargo test --locked --workspace --test proof
	@tests/simulation.sh $(or $(SCHEDULES),1000000)
	@tests/assets.sh oldest
	HOLDFAST_KUBERNETES=1.34.4 cargo test --locked --workspace --test site -- the_crds_are_accepted

