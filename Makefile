# make demo    export a tiny model, run it, measure it (its own environment in .venv)
# make test    C tests (with sanitizers too), faults that the tests must see, Python tests
# make fuzz    libFuzzer over hostile files, FUZZ_SECONDS each (needs clang); with -j some at a time
# make clean

PYTHON ?= python3
VENV ?= .venv
BUILD ?= build/c
FUZZ_SECONDS ?= 60
SHELL := /bin/bash

# Test groups, NAME:SECONDS:PATTERN of file names in tests/; a file belongs to the first that matches.
TEST_GROUPS ?= \
  onnx:900:test_export_onnx_* \
  export:600:test_export_* \
  positions:900:test_positions_* \
  compiler:900:test_compiler_* \
  matrix:900:test_boards_* \
  boards:600:test_boards* \
  objects:600:test_runtime_objects* \
  runtime:600:test_runtime_* \
  tokenizer:300:test_tokenizer* \
  real:420:test_real_* \
  hostile:600:test_hostile* \
  other:1200:test_*

FUZZERS := $(patsubst c_runtime/fuzz/%.c,%,$(wildcard c_runtime/fuzz/fuzz_*.c))

# Python compiles what is imported, which is a small part.
INSTALL := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check install --no-compile
SOURCES := CMakeLists.txt pyproject.toml $(shell find edgepos export c_runtime examples/tiny -type f \
  -not -path '*/__pycache__/*' -not -path 'edgepos/export' -not -name '*.so')

.PHONY: demo test environment ctest sanitize mutations pytest fuzz fuzzers $(FUZZERS) clean

demo: $(VENV)/.installed
	@$(VENV)/bin/edgepos demo

test: ctest sanitize mutations pytest

environment: $(VENV)/.tests

ctest:
	@cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release >/dev/null
	@cmake --build $(BUILD) --parallel 2 >/dev/null
	@ctest --test-dir $(BUILD) --output-on-failure

sanitize:
	@cmake -S . -B build/sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo -DEDGEPOS_SANITIZE=ON >/dev/null
	@cmake --build build/sanitize --parallel 2 >/dev/null
	@ctest --test-dir build/sanitize --output-on-failure

mutations: $(VENV)/.tests
	@timeout 900 $(VENV)/bin/python tests/mutations.py

# The installed package is what is tested: pytest without `python -m` leaves the checkout out of its path.
pytest: $(VENV)/.tests $(VENV)/.installed
	@$(VENV)/bin/python tests/run_groups.py $(TEST_GROUPS)

fuzz: $(FUZZERS)

fuzzers:
	@cmake -S c_runtime -B build/fuzz -DCMAKE_C_COMPILER=clang -DEDGEPOS_FUZZ=ON -DEDGEPOS_TESTS=OFF >/dev/null
	@cmake --build build/fuzz --parallel 2 >/dev/null
	@mkdir -p $(FUZZERS:%=build/fuzz/corpus/%) && build/fuzz/make_seeds build/fuzz/corpus/fuzz_open

$(FUZZERS): fuzzers
	@echo "== $@, $(FUZZ_SECONDS) s" && build/fuzz/$@ -verbosity=0 -max_total_time=$(FUZZ_SECONDS) -timeout=10 \
	  -artifact_prefix=build/fuzz/ build/fuzz/corpus/$@ $(wildcard c_runtime/fuzz/corpus/$@)

clean:
	@rm -rf build $(VENV) .pytest_cache .hypothesis tiny-*.edgepos

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(SOURCES) | $(VENV)/bin/python
	@echo "installing edgepos into $(VENV) ..."
	@$(INSTALL) .
	@touch $@

# Edgepos itself too, built once for both.
$(VENV)/.tests: pyproject.toml | $(VENV)/bin/python
	@echo "installing edgepos and the test tools into $(VENV) ..."
	@$(INSTALL) ".[test]"
	@touch $(VENV)/.installed $@
