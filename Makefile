# README's two commands: `make demo` and `make test`. They need Python 3.11, Rust and make.
# `make check` is `make test` without the set-up.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin

# Small solves on several threads cost more than they gain on a busy machine.
export OMP_NUM_THREADS := 1
# `make check NUM_PROCESSES=2` runs test files side by side, each whole in one process, because its tests share
# captured models and more. Tests that time something want a core each.
NUM_PROCESSES ?= 1
TEST_PROCESSES := --numprocesses $(NUM_PROCESSES) --dist loadfile --no-loadscope-reorder

# Cargo and maturin build against the same interpreter.
export PYO3_PYTHON := $(BIN)/python
export VIRTUAL_ENV := $(VENV)

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust/core rust/py -name '*.rs' -o -name '*.toml')

.PHONY: demo demo-graphs fuzz test check build bench lint format clean

demo: build
	@$(BIN)/python benches/demo.py

demo-graphs: build
	@$(BIN)/python benches/demo_graphs.py

test: build
	$(MAKE) check

check: lint
	cargo test --workspace --exclude baechi-py --locked --quiet
	$(BIN)/python -m pytest --quiet $(TEST_PROCESSES) --benchmark-disable tests python/baechi benches

lint:
	cargo fmt --all --check
	cargo fmt --manifest-path rust/fuzz/Cargo.toml --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy --strict python/baechi
	$(BIN)/python -m mypy.stubtest baechi._core

build: $(VENV)/.built

# CPU time, which other work on the machine disturbs less; everything runs on one thread.
bench: build
	mkdir -p target
	$(BIN)/python -m pytest --quiet benches --benchmark-only --benchmark-quiet --slow-baseline \
		--benchmark-timer=time.process_time --benchmark-json=target/bench.json
	$(BIN)/python benches/table.py target/bench.json

format:
	cargo fmt --all
	cargo fmt --manifest-path rust/fuzz/Cargo.toml
	$(BIN)/ruff check --fix --quiet --select I
	$(BIN)/ruff format

# Long fuzzing, FUZZ_SECONDS per target: the core with libFuzzer (rust/fuzz), the readers with atheris (tests/fuzz).
# Coverage comes from a pass of LLVM that every toolchain has, so no nightly and no cargo-fuzz are needed.
FUZZ_SECONDS ?= 300
FUZZ_CORE := place simulate group
FUZZ_READERS := graph_json graph_npz workload plan cluster_json cluster_toml expert units
FUZZ_HOST = $(shell rustc -vV | sed -n 's/host: //p')
FUZZ_FLAGS := --cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
	$(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares)

fuzz: build
	$(BIN)/uv pip install --quiet --python $(BIN)/python 'atheris>=3'
	RUSTFLAGS="$(FUZZ_FLAGS)" cargo build --quiet --release --locked --target $(FUZZ_HOST) \
		--manifest-path rust/fuzz/Cargo.toml --target-dir target/fuzz
	@set -e; mkdir -p target/fuzz/corpus; for name in $(FUZZ_CORE); do \
		mkdir -p target/fuzz/corpus/$$name; echo "== $$name"; \
		target/fuzz/$(FUZZ_HOST)/release/$$name target/fuzz/corpus/$$name -max_len=600 -len_control=0 \
			-max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1 \
			-artifact_prefix=target/fuzz/$$name-; \
	done; for name in $(FUZZ_READERS); do echo "== $$name"; \
		$(BIN)/python tests/fuzz/run.py $$name target/fuzz/corpus/$$name -max_len=6000 \
			-max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1 \
			-artifact_prefix=target/fuzz/$$name-; \
	done

clean:
	rm -rf $(VENV) target python/baechi/_core*.so

$(VENV)/.tools: pyproject.toml constraints.txt
	@echo "setting up $(VENV): PyTorch and more, some 6 GB, which takes minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python \
		--requirement pyproject.toml --extra dev --constraint constraints.txt
	@touch $@

$(VENV)/.built: $(VENV)/.tools $(RUST_SOURCES)
	@echo "building the Rust core, up to a minute or two"
	@$(BIN)/maturin develop --release --locked --quiet >$(VENV)/build.log 2>&1 \
		|| { cat $(VENV)/build.log; exit 1; }
	@touch $@
