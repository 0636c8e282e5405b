# Every command here does its own set-up: a virtual environment in .venv, what it needs in there, and
# the extension in release mode. A second run rebuilds nothing. Needs cargo, CPython 3.11 or later, a
# C and C++ compiler and make. Variables: PYTHON, KEYFOLD_VENV, FEATURES, and cargo's and pip's own.
.DEFAULT_GOAL := help
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory

.PHONY: help build demo test test-rust test-python lint format bench bench-opencl bench-rust wheel test-wheel \
	coverage sanitize sanitize-address sanitize-thread loom soak fuzz explore conformance \
	clean

help: ## this list
	@printf 'keyfold: make COMMAND\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' Makefile

demo: ## train a convolutional network on operators of its own, and look inside; DEVICE=opencl: there
	@scripts/build.sh
	@scripts/demo.sh $(DEVICE)

test: ## everything: formatting, lints, Rust tests, loom, types, pytest, a short fuzzing
	@scripts/test.sh lint rust python wheel loom fuzz

build: ## only build the extension and install the package in place
	@scripts/build.sh

test-rust: ## cargo test and loom
	@scripts/test.sh rust loom

test-python: ## types and pytest
	@scripts/test.sh python

lint: ## formatting and lints, Rust and Python
	@scripts/test.sh lint

format: ## rewrite the sources in the project's format
	@scripts/bootstrap.sh lint
	@cargo fmt --all
	@cargo fmt --manifest-path fuzz/Cargo.toml
	@scripts/run.sh -m ruff check --fix .
	@scripts/run.sh -m ruff format .

bench: ## Python benchmarks: keyfold beside its peers, with ratios
	@scripts/bench.sh

bench-opencl: ## the benchmark of OpenCL alone: two minutes
	@scripts/bench.sh benches/bench_opencl.py

bench-rust: ## Rust benchmarks: cargo bench
	@cargo bench --workspace --exclude keyfold-python --exclude keyfold-extension

wheel: ## a wheel for this Python in target/wheels, glibc 2.28 or later (FEATURES=abi3: for 3.11 and later)
	@scripts/wheel.sh

test-wheel: ## the abi3 wheel, built once, under the Python tests of every CPython that is found
	@FEATURES=abi3 scripts/wheel.sh
	@scripts/test_wheel.sh target/wheels

coverage: ## line coverage of crates/dispatch
	@scripts/coverage.sh

sanitize: sanitize-address sanitize-thread ## AddressSanitizer and ThreadSanitizer on the Rust tests

sanitize-address: ## AddressSanitizer alone
	@scripts/sanitize.sh address

sanitize-thread: ## ThreadSanitizer alone
	@scripts/sanitize.sh thread

loom: ## the model checker on the registry and the plan cache (LOOM_MAX_PREEMPTIONS=3: deeper, slower)
	@scripts/loom.sh

soak: ## the swap tests at full length
	@scripts/soak.sh

fuzz: ## the fuzz targets, FUZZ_SECONDS=60 each or FUZZ_RUNS inputs (FUZZ=schema: only that one)
	@scripts/fuzz.sh $(FUZZ)

explore: ## the tests of random inputs with new ones, in Rust EXPLORE_ROUNDS=5 times
	@scripts/explore.sh

conformance: ## all cases of the conformance kit on DEVICE=cpu, opencl, another one with LOAD=FILE
	@scripts/build.sh
	@scripts/conformance.sh $${DEVICE:-cpu} $${LOAD:+--load "$$LOAD"}

clean: ## remove what the commands above made, the virtual environment too
	@rm -rf .venv build .pytest_cache .hypothesis .ruff_cache .mypy_cache
	@rm -f python/keyfold/_core*.so
	@cargo clean
