# Everything runs from .venv, which the targets make themselves: a machine needs Python >= 3.11, make and git, nothing else.
# `make PYTHON=/path/to/python3.12 install` picks the interpreter.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
WORKERS ?= 2
MINUTES ?= 60

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install run test check bench soak mutants compat clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv and install Tidelog and its tools, at pinned versions

run: $(INSTALLED) ## Start a broker on 127.0.0.1:9092, its data under ./data
	@$(BIN)/tidelog start

test: check ## Check, then run all tests
	$(BIN)/python -m pytest -n $(WORKERS)

check: $(INSTALLED) ## Lint, formatting, types, layering, tidiness
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(wildcard src simulation tests bench)
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py

bench: $(INSTALLED) ## Measure the storage engine against the raw disk
	$(BIN)/python -m bench

soak: $(INSTALLED) ## Crash and compare for long (MINUTES=60)
	TIDELOG_SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m soak --timeout=0 tests

mutants: $(INSTALLED) ## Plant known bugs one by one; each must be found
	$(BIN)/python -m tests.mutants

compat: $(INSTALLED) ## Have Apache Kafka read what Tidelog wrote, and the reverse
	$(BIN)/python -m pytest -m apache_kafka tests/compatibility

clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src simulation bench tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Tidelog needs Python >= 3.11 on the PATH, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }

# The build backend is installed first, at a pinned version, so that no unpinned copy of it is fetched for the build.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) hatchling editables
	$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@
