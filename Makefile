# The two commands are `make demo` and `make test`; both do all the set-up they need. `make` alone lists the rest.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

JOBS ?= $(shell scripts/jobs.sh)
TEXT ?=
ARGS ?=
# Names are taken as they stand ($ included) and reach the scripts by the environment: in a shell line an apostrophe
# would end them, and `...` would run.
override TEXT := $(value TEXT)
override MINUTES := $(value MINUTES)
override T := $(value T)
export FOVEA_TEXT := $(TEXT)
export FOVEA_MINUTES := $(MINUTES)
export FOVEA_TESTS := $(T)

.PHONY: help setup gpu build program demo model retrofit test quick test-debug sanitize sanitize-changed sanitize-threads test-aarch64 test-aarch64-program check format lint docs bench bench-pages study-pages claims support python-peers wheel python-test clean

help: ## this list
	@echo "Fovea. Targets (each does what it needs first):"
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26
	@echo "Variables: TEXT=file-or-folder and ARGS='key=value ...' for demo, JOBS=$(JOBS), FOVEA_CACHE=folder (docs/building.md)"

setup: ## Debian packages and the pinned torch wheel, nothing else
	@scripts/setup.sh

gpu: setup ## what torch needs to compute on an NVIDIA GPU (2.5 GB), and our CUDA kernels where nvcc is; once; docs/gpu.md
	@scripts/setup-gpu.sh
	@scripts/build-cuda.sh $(JOBS)

build: setup ## everything: the program build/bin/fovea, libraries, tests, examples
	@scripts/build.sh release $(JOBS)

program: setup ## the program alone
	@scripts/build.sh release $(JOBS) fovea

demo: program ## train and compare attention variants on real text (TEXT=your.txt), report in runs/demo/report.html
	@scripts/demo.sh $(ARGS)

model: ## a real model to talk with: SmolLM2-135M-Instruct (93 MB), into the cache folder
	@scripts/fetch-model.sh

retrofit: program model ## put Focus on SmolLM2-135M (TEXT=your.txt, MINUTES=4): a table and runs/retrofit/report.html
	@scripts/retrofit.sh $(ARGS)

ifdef T
test: setup
	@scripts/test-some.sh $(JOBS) "$$FOVEA_TESTS"
else
test: build ## all tests; T=attention: one program, T='Rope*': the tests of that name
	@scripts/run-tests.sh release $(JOBS) $(ARGS)
	@scripts/python-tests.sh
endif

quick: setup ## the test programs of the layers that differ from the last commit
	@scripts/test-some.sh $(JOBS)

test-debug: setup ## all tests of a debug build
	@scripts/build.sh debug $(JOBS)
	@scripts/run-tests.sh debug $(JOBS) $(ARGS)

sanitize: setup ## all tests under the address and undefined-behaviour sanitizers
	@scripts/build.sh sanitize $(JOBS)
	@scripts/run-tests.sh sanitize $(JOBS) $(ARGS)

sanitize-changed: setup ## the kernels' and parsers' tests under the sanitizers, unless these sources passed before
	@scripts/sanitize-changed.sh $(JOBS)

sanitize-threads: setup ## the kernels' and the engine's tests under the thread sanitizer
	@scripts/build.sh sanitize-threads $(JOBS) kernels_test engine_test
	@TSAN_OPTIONS=halt_on_error=1 build/sanitize-threads/bin/kernels_test --gtest_brief=1 $(ARGS)
	@OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 build/sanitize-threads/bin/engine_test --gtest_brief=1 $(ARGS)

test-aarch64: setup ## the kernels' tests on ARM, by cross compiler and qemu, unless these sources passed before
	@scripts/test-aarch64.sh $(JOBS)

test-aarch64-program: setup ## the whole program on ARM, by cross compiler and qemu: a real model's text and a training run as here
	@scripts/test-aarch64-program.sh $(JOBS)

check: build ## the checks of .ci/run: format, lint, layers, docs, spec coverage
	@scripts/check.sh

format: ## clang-format in place
	@scripts/check-format.sh --fix

lint: build ## clang-tidy, the short list of .clang-tidy
	@scripts/lint.py

docs: setup ## the documentation as a site with search and an API reference, in build/site; links checked
	@scripts/docs.sh

bench: build ## benchmarks; prints ratios (ARGS go to the benchmark programs)
	@scripts/bench.sh $(ARGS)

bench-pages: ## the tables of benchmarks/results/*.md from the result files
	@scripts/bench-pages.py

study-pages: ## the tables of docs/findings/*.md from the result files
	@scripts/study-pages.py

claims: program ## the table of docs/findings/claims.md: verdicts from the claims and result files
	@build/bin/fovea reproduce --markdown > docs/findings/claims.md

support: program ## the table of docs/support.md: what the program does with each mechanism
	@scripts/support.py

python-peers: setup ## a second environment with the full Python stack (5 GB), for peers and goldens only
	@scripts/python-peers.sh

wheel: setup python-peers ## the Python package and the program as wheels, build/dist/*.whl (docs/python.md)
	@FOVEA_KERNELS=all scripts/build.sh release $(JOBS) fovea
	@scripts/wheel.sh $(JOBS)

python-test: python-peers ## the tests of the Python package; part of `make test` where python-peers is made
	@scripts/python-tests.sh $(ARGS)

clean: ## removes build/ and build-python/; the cache folder and runs/ stay
	rm -rf build build-python
