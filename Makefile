# `make demo` and `make test` do all set-up themselves on a machine with Python and a C++ compiler.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
# torch first and alone, pinned, so that pip takes a local CPU build where it is configured with one.
CONSTRAINTS ?= constraints.txt
# Ranks share the cores: one intra-op thread each, or they stall one another.
export OMP_NUM_THREADS ?= 1
# That test at once: what computes, and jobs of several ranks (docs/design/tests.md).
PROCESSES ?= 2
JOBS ?= 2
# --full: every case instead of the fast suite (docs/design/tests.md).
SUITE ?=

.PHONY: browser core-to-test demo docs meanwhile test test-all test-core test-gpu test-here test-ranks test-sanitized test-mutants test-newest test-oldest test-wheels test-aarch64 wheels lint setup bench bench-convergence clean help

demo: setup  ## train a real model over an emulated slow network, with and without gradwire: 4 minutes, or 1: QUICK=1
	$(PY) -m gradwire demo $(if $(QUICK),--quick)

test:  ## the fast suite, in minutes; or the tests of ARGS=...
ifdef ARGS
	$(MAKE) setup
	$(PY) -m pytest $(ARGS)
else
	$(MAKE) test-here test-ranks $(if $(SUITE),test-sanitized,test-core)
endif

test-all:  ## every case: more than half an hour
	$(MAKE) test SUITE=--full

# What is freed is used again: a fresh page costs more than what most tests do with it.
test-here: export MALLOC_MMAP_THRESHOLD_ ?= 1073741824
test-here: export MALLOC_TRIM_THRESHOLD_ ?= 1073741824
test-here: setup  ## the fast suite's part of one process
	$(PY) -m pytest $(SUITE) --numprocesses $(PROCESSES) --dist worksteal --ignore tests/distributed

test-ranks: setup  ## the fast suite's part of several
	$(PY) -m pytest $(SUITE) --numprocesses $(JOBS) --dist loadfile tests/distributed

# For CI alone: lint's and sanitizers' turn is when ranks wait.
meanwhile: setup
	+nice -n 15 $(MAKE) lint
	+nice -n 15 $(MAKE) test-core

test-mutants: setup  ## hours: does the fast suite see what every case sees? (docs/design/tests.md)
	PYTHONPATH=tests $(PY) -m mutation.trace build/mutation/traced
	PYTHONPATH=tests GRADWIRE_TEST_NATIVE=$$(echo $(PWD)/build/mutation/traced/made/_native*.so) $(PY) -m pytest -q \
	  --full --hypothesis-profile fast -p mutation.evidence --evidence build/mutation/evidence --numprocesses $(PROCESSES) --dist loadfile
	PYTHONPATH=tests $(PY) -m pytest -q --full --hypothesis-profile fast -p mutation.run --evidence-of build/mutation/evidence \
	  --mutants 300 --results build/mutation/python.json
	PYTHONPATH=tests $(PY) -m pytest -q --full --hypothesis-profile fast -p mutation.run --evidence-of build/mutation/evidence --native \
	  --mutants 40 --results build/mutation/native.json

test-gpu:  ## on a machine with a GPU, by a PYTHON whose torch has CUDA: bits, and speed; two minutes
	PYTHONPATH=src $(PYTHON) benchmarks/gpu/main.py $(ARGS)

# The order of imports depends on which files there are, which the cache of a file does not see.
lint: setup  ## ruff (lint, format), mypy --strict, and whether benchmarks ask for names that there are
	$(PY) -m ruff check --no-cache .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	@! for folder in benchmarks/*/; do \
	  MYPYPATH=$$folder:benchmarks/convergence:benchmarks/network/htsim $(PY) -m mypy --explicit-package-bases $$folder; \
	done 2>&1 | grep -E '\[(attr-defined|call-arg|name-defined|import-not-found)\]$$'

bench: setup  ## the tables in benchmarks/: kernels, compressors, conductor, sparse, lab, planner, the long demo
	$(PY) -m gradwire bench kernels
	$(PY) -m gradwire bench compressors
	$(PY) -m gradwire bench conductor
	$(PY) benchmarks/sparse/tables.py
	$(PY) -m gradwire lab probe
	$(PY) benchmarks/compressors/main.py
	$(PY) benchmarks/demo/main.py
	$(PY) benchmarks/planner/gap.py

bench-convergence: setup  ## hours: accuracy at 0.1 % of the gradient beside dense; goes on where it was left off
	$(PY) benchmarks/convergence/main.py --full --jobs $(PROCESSES) --plot build/convergence/curves.png

# Those of pyproject.toml, once they are wanted: no test needs them.
DOCS = $$($(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')

docs: $(VENV)/.docs  ## the documentation as a site, in build/docs: nothing is fetched to look at it
	$(PY) -m sphinx -q -W --keep-going -n -c docs . build/docs
	@echo "$(PWD)/build/docs/index.html"

$(VENV)/.docs: $(VENV)/.ready
	@$(INSTALL) $(DOCS)
	@touch $@

browser:  ## Chromium, in which tests look at pages; where it cannot be had they are skipped
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  apt-get install -qq --no-install-recommends chromium chromium-driver >/dev/null 2>&1 || \
	  { apt-get update -qq && apt-get install -qq --no-install-recommends chromium chromium-driver >/dev/null; } 2>/dev/null || \
	  echo "no Chromium: tests of pages are skipped"

setup: $(VENV)/.ready  ## a .venv with pinned packages and gradwire in it, editable, kernels built

$(PY):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "gradwire needs Python 3.11 or later; '$(PYTHON)' is not there. Install it, or say make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "gradwire needs Python 3.11 or later; $$($(PYTHON) --version) is older. Say make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the venv module. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { \
	  echo "the kernels need a C++20 compiler; '$${CXX:-c++}' is not there. On Debian and Ubuntu: apt-get install g++" >&2; exit 1; }
	@echo "setting up $(VENV), once: about 2 minutes and 2.3 GB, most of it torch and triton"
	$(call part,1 of 3: a virtual environment,$(PYTHON) -m venv $(VENV))

SOURCES := pyproject.toml CMakeLists.txt $(wildcard csrc/*.* csrc/*/*.*)

$(VENV)/.ready: $(SOURCES) constraints.txt requirements.txt | $(PY)
	$(call part,2 of 3: torch; compiling the kernels,{ $(INSTALL) --quiet --no-deps --editable . & $(INSTALL) torch; torch=$$?; wait $$! && test $$torch = 0; })
	$(call part,3 of 3: all other packages,$(HASHED) -r requirements.txt)
	@touch $@

# Downloads move on a terminal, and are quiet elsewhere.
INSTALL = $(PY) -m pip install --no-compile $$(test -t 1 || echo --quiet) --constraint $(CONSTRAINTS)
# All but torch, of which there are builds for many machines, is checked against its hash; nothing is resolved.
HASHED = $(PY) -m pip install --no-compile $$(test -t 1 || echo --quiet) --require-hashes --no-deps
# $(call part,WORDS,COMMAND): what is done, and how many seconds it took.
part = @echo "  $(1) ..."; began=$$(date +%s); $(2) && echo "  $(1): $$(($$(date +%s) - began)) s"

test-oldest:  ## the tests with the oldest torch that is supported, where a wheel can be had
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

test-newest:  ## the tests with the newest torch that there is: gigabytes
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=constraints-newest.txt

wheels:  ## the wheels of Linux, for x86-64 and ARM, in dist: 10 to 25 minutes, by all of python3.11 and python3.12 that are here
	$(PYTHON) release/wheels.py

# Those that this machine can install: one per Python for which there is one.
test-wheels:  ## install the wheels in dist in a clean environment without a compiler, and use them
	@for python in python3.11 python3.12; do $$python --version >/dev/null 2>&1 || continue; \
	  case $$python in python3.11) tag=cp311-cp311;; *) tag=cp312-abi3;; esac; \
	  $$python release/try_wheel.py dist/gradwire-*-$$tag-*_$$(uname -m).whl --torch "$$(grep '^torch==' $(CONSTRAINTS))" $(ARGS) || exit 1; \
	done

test-aarch64:  ## bits of the wheel for ARM, under qemu: minutes; with torch, hours: ARGS=tests/unit/kernels
	release/test_aarch64.sh $(ARGS)

# Whatever bytes arrive, no kernel may read or write out of bounds: what decodes is run where every address is checked, but for
# the twins, which are of torch.
ASAN_TESTS := $(addprefix tests/unit/kernels/test_,casts.py codes.py crowds.py hash_memory.py indices.py merges.py row_sums.py \
  rows.py signs.py sparse.py streams.py) $(addprefix tests/contract/test_,coded_payloads.py coo_rows.py payload_checks.py \
  stream_damage.py) $(addprefix tests/unit/planner/test_,search.py timeline.py) \
  $(addprefix tests/unit/network/test_,colouring.py failures.py flow_engine.py hashed.py least_loaded.py packet_engine.py \
  packet_limits.py packet_turns.py) tests/unit/lab/test_forwarder.py

# By the sanitizers of addresses and of what C++ leaves undefined.
SANITIZED = LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so)" \
  GRADWIRE_TEST_NATIVE=$$(echo build/asan/gradwire/_native*.so) UBSAN_OPTIONS=print_stacktrace=1
# Calls that no sane caller makes ask for all the memory there is.
FUZZED = ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096
FUZZ_CALLS = $(if $(SUITE),200000,15000)

# What the sanitizers look at seldom changes, and takes them minutes.
test-core:  ## test-sanitized, unless all that it looks at is as it was when it passed
	+@$(SEEN) && echo "the core is as it was when the sanitizers passed" || $(MAKE) test-sanitized

core-to-test:  # what test-core needs, built beside other set-up
	+@$(SEEN) || $(MAKE) build/asan/.ready

SEEN = $(PYTHON) tests/stamp.py

test-sanitized: setup build/asan/.ready  ## what decodes or searches, and calls of anything, where every address is checked
	$(SANITIZED) ASAN_OPTIONS=detect_leaks=0:log_path=build/asan/report \
	  $(PY) -m pytest -q $(SUITE) --numprocesses $(PROCESSES) --dist worksteal -k 'not [twin' $(ASAN_TESTS) || { cat build/asan/report* 2>/dev/null; exit 1; }
	$(SANITIZED) $(FUZZED) $(PY) tests/fuzz/main.py --calls $(FUZZ_CALLS) --processes $(PROCESSES)
	$(SEEN) --write

build/asan/.ready: $(SOURCES) | $(PY)
	rm -rf build/asan
	$(PY) -m pip install --quiet --no-deps --target build/asan . -C cmake.define.GRADWIRE_SANITIZE=ON -C cmake.define.GRADWIRE_UNDEFINED=ON
	@touch $@

clean:  ## remove what the targets above made
	rm -rf .venv .venv-oldest build dist demo-out

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 19
