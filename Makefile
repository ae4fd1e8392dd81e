# Builds, tests and shows weft. `make help` lists the targets.
#
# Each step prints one line, or its whole output when it fails (tools/step.sh).
# PYTHON=/path/to/python3 picks the interpreter of .venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Steps run one after another; each may itself use every core.
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

export CMAKE_BUILD_PARALLEL_LEVEL := $(shell nproc)
export PYTHON

STEP := tools/step.sh
VENV := .venv/bin
BUILT := .venv/.weft-built
NATIVE := $(shell find core bindings clib include -type f -not -path '*/tests/*')

.PHONY: help demo build clib test check format core-test sanitize test-threads pytest docs wheels test-wheel docs-test test-faults test-optimal test-live test-control test-churn test-distributed test-apps test-rdma mutants bench bench-quick install-system clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## everything from a fresh clone: install, build, run the tour, write report.html
	@tools/system-packages.sh demo
	@$(MAKE) build
	@$(VENV)/weft tour -o report.html

build: $(BUILT) ## .venv with weft installed editable, compiled again when C++ sources changed

clib: ## the library for applications in C: build/clib/libweft_control.so, include/weft_control.h
	@tools/system-packages.sh build
	@$(STEP) "clib configure" cmake -S . -B build/clib
	@$(STEP) "clib build" cmake --build build/clib --target weft_control

test: ## check, C++ tests, sanitizers, pytest
	@tools/system-packages.sh test
	@$(MAKE) check core-test sanitize pytest

check: $(BUILT) ## ruff, mypy --strict, import-linter, clang-format
	@$(STEP) "ruff check" $(VENV)/ruff check .
	@$(STEP) "ruff format" $(VENV)/ruff format --check .
	@$(STEP) "mypy" $(VENV)/mypy --strict
	@$(STEP) "import-linter" $(VENV)/lint-imports
	@tools/cpp-format.sh check

format: $(BUILT) ## write Python and C++ files as `make check` wants them
	@$(STEP) "ruff format" $(VENV)/ruff format .
	@tools/cpp-format.sh write

# $(1) build directory and name of the steps, $(2) further options of cmake
define run_core_tests
@tools/system-packages.sh build
@$(STEP) "$(1) configure" cmake -S . -B build/$(1) -DWEFT_TESTS=ON -DWEFT_WARNINGS_ARE_ERRORS=ON \
	-DCMAKE_BUILD_TYPE=RelWithDebInfo $(2)
@$(STEP) "$(1) build" cmake --build build/$(1)
@$(STEP) "$(1) run" env -C build/$(1) ctest --output-on-failure
endef

# No NDEBUG in either: assertions of the core and of the standard library stay on. -g1: what lines
# in traces need, and no more to compile.
core-test: ## the C++ tests, with assertions on
	$(call run_core_tests,core-test,-DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -g1 -D_GLIBCXX_ASSERTIONS")

sanitize: ## the C++ tests under the address and undefined-behaviour sanitizers
	$(call run_core_tests,sanitize,-DWEFT_SANITIZE=ON \
		-DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS")

# Fewer are asked for by `make test-threads WEFT_THREAD_CASES=200`; under the thread sanitizer a
# fifth as many.
WEFT_THREAD_CASES := 12000
test-threads: $(BUILT) ## simulations with 1, 2, 3 and 7 threads: 12,000 random fabrics, the examples; the thread sanitizer; minutes
	@$(STEP) "core-test configure" cmake -S . -B build/core-test -DWEFT_TESTS=ON \
		-DWEFT_WARNINGS_ARE_ERRORS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
		-DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -g1 -D_GLIBCXX_ASSERTIONS"
	@$(STEP) "core-test build" cmake --build build/core-test
	@$(STEP) "random fabrics" env WEFT_THREAD_CASES=$(WEFT_THREAD_CASES) \
		build/core-test/weft_core_tests threads
	@$(STEP) "thread-sanitize configure" cmake -S . -B build/thread-sanitize -DWEFT_TESTS=ON \
		-DWEFT_SANITIZE=thread -DCMAKE_BUILD_TYPE=RelWithDebInfo \
		-DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 -fno-omit-frame-pointer"
	@$(STEP) "thread-sanitize build" cmake --build build/thread-sanitize --target weft_core_tests
	@$(STEP) "thread-sanitize run" env WEFT_THREAD_CASES=$$(( $(WEFT_THREAD_CASES) / 5 )) \
		build/thread-sanitize/weft_core_tests threads
	@WEFT_ALL_EXAMPLES=1 PATH="$(CURDIR)/$(VENV):$$PATH" tools/pytest-twice.sh $(VENV)/python -rs \
		tests/unit/test_simulate_threads.py </dev/null

# Files of tests are independent of each other; those of one file may share what they have set up.
WORKERS := $(shell nproc)
pytest: $(BUILT) ## the Python tests, on all cores; what was skipped is listed with its reason
	@PATH="$(CURDIR)/$(VENV):$$PATH" tools/pytest-twice.sh $(VENV)/python -rs -n $(WORKERS) --dist loadfile \
		</dev/null

test-faults: $(BUILT) ## peers killed 200 times, hosts cut off, 10^5 fuzzed inputs; minutes
	@WEFT_FAULT_KILLS=200 WEFT_FUZZ_INPUTS=100000 WEFT_LIVE=1 PATH="$(CURDIR)/$(VENV):$$PATH" \
		tools/pytest-twice.sh $(VENV)/python -rs tests/live/test_faults.py tests/live/test_fuzz.py \
		tests/live/test_vanished_host.py </dev/null

# Fewer are asked for by `make test-optimal WEFT_SLSQP_PORTS=167 WEFT_NOISY_FITS=1000`; ports are of
# each of three kinds.
WEFT_SLSQP_PORTS := 3334
WEFT_NOISY_FITS := 10000
test-optimal: $(BUILT) ## 10,000 random ports beside SLSQP, 10,000 fits; gaps told; half an hour
	@WEFT_SLSQP_PORTS=$(WEFT_SLSQP_PORTS) WEFT_NOISY_FITS=$(WEFT_NOISY_FITS) WEFT_ALL_EXAMPLES=1 \
		PATH="$(CURDIR)/$(VENV):$$PATH" tools/pytest-twice.sh $(VENV)/python -rsP \
		tests/property/test_allocate_optimal.py tests/property/test_sensitivity_laws.py \
		tests/property/test_allocate_laws.py tests/property/test_policy_laws.py \
		tests/property/test_fabric_wide_laws.py tests/property/test_trace_laws.py \
		tests/property/test_flow_rates.py </dev/null

# NO_MKDOCS_2_WARNING: the theme's notice is not about our pages.
docs: $(BUILT) ## the documentation as a site, build/site/index.html, every link checked
	@$(STEP) "pip install docs" $(VENV)/python -m pip install -r <($(VENV)/python -c \
		'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"] \
		["optional-dependencies"]["docs"], sep="\n")')
	@$(STEP) "mkdocs build" env NO_MKDOCS_2_WARNING=1 $(VENV)/python -m mkdocs build --strict

wheels: ## dist/: source distribution, wheels for x86-64 and AArch64 (MACHINES="x86_64" picks)
	@tools/system-packages.sh build
	@tools/wheels.sh $(MACHINES)

test-wheel: ## the wheel in a new environment, without a compiler and RDMA libraries
	@$(MAKE) wheels MACHINES="$(shell uname -m)"
	@tools/try-wheel.sh

docs-test: $(BUILT) ## every example in the documentation
	@PATH="$(CURDIR)/$(VENV):$$PATH" tools/pytest-twice.sh $(VENV)/python -rs tests/docs </dev/null

test-live: $(BUILT) ## hosts as network namespaces (as root): testbed, caps, queues, profiles, plans; InfiniBand subnets of ibsim; the controller on both
	@tools/system-packages.sh live
	@PATH="$(CURDIR)/$(VENV):$$PATH" WEFT_LIVE=1 tools/pytest-twice.sh $(VENV)/python -rs \
		tests/live/test_testbed.py tests/live/test_standing.py tests/live/test_caps.py \
		tests/live/test_inbound.py tests/live/test_queues.py tests/live/test_profile.py \
		tests/live/test_profile_cluster.py tests/live/test_cluster.py \
		tests/live/test_jobs_live.py tests/live/test_sweep_cluster.py tests/live/test_cut_link.py \
		tests/live/test_converged.py tests/live/test_trace.py \
		tests/live/test_corun.py tests/live/test_run.py tests/live/test_applications.py \
		tests/live/test_infiniband_live.py tests/live/test_export_live.py \
		tests/live/test_linux_switch.py tests/live/test_linux_agent.py \
		tests/live/test_linux_fabrics.py tests/conformance \
		tests/live/test_control_infiniband.py tests/live/test_control_linux.py \
		tests/live/test_control_marks.py \
		tests/live/test_control_day.py </dev/null

# Fewer are asked for as above; FLOOD= leaves out the flood, which needs a quiet machine.
WEFT_CONTROL_KILLS := 500
WEFT_CLIENT_KILLS := 200
WEFT_MIXED_KILLS := 1000
WEFT_CLOCK_JUMPS := 40
WEFT_FUZZ_INPUTS := 100000
WEFT_SOCKET_INPUTS := 1000000
FLOOD := tests/live/test_control_limits.py
test-control: $(BUILT) ## controllers, agents and clients killed 1,700 times under load, 10^6 bent inputs, a full disk, floods (as root); an hour
	@tools/system-packages.sh live
	@WEFT_CONTROL_KILLS=$(WEFT_CONTROL_KILLS) WEFT_CLIENT_KILLS=$(WEFT_CLIENT_KILLS) \
		WEFT_MIXED_KILLS=$(WEFT_MIXED_KILLS) WEFT_CLOCK_JUMPS=$(WEFT_CLOCK_JUMPS) \
		WEFT_FUZZ_INPUTS=$(WEFT_FUZZ_INPUTS) WEFT_SOCKET_INPUTS=$(WEFT_SOCKET_INPUTS) \
		WEFT_ALL_EXAMPLES=1 WEFT_LIVE=1 \
		PATH="$(CURDIR)/$(VENV):$$PATH" tools/pytest-twice.sh $(VENV)/python -rsP \
		tests/live/test_control_crash.py tests/live/test_control_kills.py \
		tests/live/test_control_inputs.py \
		tests/live/test_control_service.py tests/live/test_control_access.py \
		tests/live/test_backup_live.py \
		$(FLOOD) tests/property/test_control_laws.py tests/property/test_session_laws.py \
		tests/property/test_client_argument_laws.py \
		tests/property/test_infiniband_tables_laws.py </dev/null

# `make test-churn WEFT_CHURN_S=900` is shorter; WEFT_CHURN_RATE=250 paces it, in events per second.
WEFT_CHURN_S := 3600
WEFT_CHURN_JOBS := 1000
WEFT_CHURN_CONNECTIONS := 100000
test-churn: $(BUILT) ## 1,000 jobs with 10^5 connections come and go: memory and store stay flat; an hour
	@WEFT_CHURN_S=$(WEFT_CHURN_S) WEFT_CHURN_JOBS=$(WEFT_CHURN_JOBS) \
		WEFT_CHURN_CONNECTIONS=$(WEFT_CHURN_CONNECTIONS) WEFT_LIVE=1 \
		PATH="$(CURDIR)/$(VENV):$$PATH" tools/pytest-twice.sh $(VENV)/python -rsP \
		tests/live/test_control_churn.py </dev/null

WEFT_GROUP_FAULTS := 200
WEFT_PARTITIONS := 100
test-distributed: $(BUILT) ## controllers that share etcd: 200 faults of members and nodes under load, 100 partitions; half an hour
	@tools/system-packages.sh live
	@WEFT_GROUP_FAULTS=$(WEFT_GROUP_FAULTS) WEFT_PARTITIONS=$(WEFT_PARTITIONS) WEFT_ALL_EXAMPLES=1 WEFT_LIVE=1 \
		PATH="$(CURDIR)/$(VENV):$$PATH" tools/pytest-twice.sh $(VENV)/python -rsP \
		tests/live/test_distributed.py tests/live/test_control_groups.py \
		tests/property/test_group_laws.py </dev/null

test-apps: $(BUILT) ## real applications profiled on a testbed (as root): rsync, pg_dump, MPI, Spark; minutes
	@tools/system-packages.sh apps
	@$(STEP) "pip install pyspark" $(VENV)/python -m pip install 'pyspark>=3.5,<5'
	@PATH="$(CURDIR)/$(VENV):$$PATH" WEFT_LIVE=1 WEFT_APPS=1 tools/pytest-twice.sh $(VENV)/python -rs \
		tests/live/test_applications.py </dev/null

test-rdma: ## verbs on kernel RDMA: soft RoCE in a virtual machine, perftest and qperf beside
	@tools/system-packages.sh rdma
	@$(MAKE) build
	@tools/rdma-vm.sh tests/live/rdma/run.sh $(CURDIR)/$(VENV)/python

# PACKAGES="records core/packet" or files, SAMPLE=20, SEED=2 choose others; AGAIN=--again: what the last run did not kill.
SAMPLE := 5
SEED := 1
PACKAGES :=
AGAIN :=
mutants: $(BUILT) ## small faults put into each package: how many do its tests notice? best beside nothing else
	@PATH="$(CURDIR)/$(VENV):$$PATH" $(VENV)/python tools/mutants --sample $(SAMPLE) \
		--seed $(SEED) $(AGAIN) $(PACKAGES) </dev/null

bench: $(BUILT) ## our figures beside the peers'; writes bench/latest.jsonl
	@tools/system-packages.sh bench
	@$(VENV)/python -m bench

bench-quick: $(BUILT) ## our figures alone, once each, answers checked; some two minutes
	@$(VENV)/python -m bench --quick

install-system: ## every system package, the optional ones too (as root)
	@tools/system-packages.sh all

clean: ## remove all that make has made, .venv included
	@rm -rf .venv build dist report.html .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@tools/system-packages.sh build
	@python=$$(tools/find-python.sh) && $(STEP) "venv of $$python" "$$python" -m venv --clear .venv

# The build tools live in .venv, not in pip's throw-away environment: with their paths unchanged
# from build to build, only changed sources are compiled again.
$(BUILT): $(NATIVE) CMakeLists.txt pyproject.toml | .venv/bin/python
	@tools/system-packages.sh build
	@$(VENV)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		>.venv/build-requires.txt
	@$(STEP) "pip install build tools" $(VENV)/python -m pip install -r .venv/build-requires.txt
	@$(STEP) "pip install weft" $(VENV)/python -m pip install --no-build-isolation \
		-C cmake.define.WEFT_WARNINGS_ARE_ERRORS=ON -e '.[dev]'
	@touch $@
