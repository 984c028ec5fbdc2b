# Everything runs from .venv, which the targets make themselves: a machine needs Python >= 3.11, make and git, nothing else.
# `make PYTHON=/path/to/python3.12 install` picks the interpreter.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# Three on two cores: many tests wait for a process or a time-out.
WORKERS ?= 3
MINUTES ?= 60

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DRAWS := $(VENV)/.draws
SPARK := $(VENV)/.spark
MYPYC := $(VENV)/.mypyc
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install run demo picture test quick check bench bench-kafka bench-peers bench-queues bench-scaling bench-pauses bench-spark bench-pipelines bench-cluster explore soak chaos plug mutants mutants-all compat test-on-kafka test-portable wheel compile test-compiled release-check check-manifests test-pythons clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv and install Tidelog and its tools, at pinned versions

run: $(INSTALLED) ## Start a broker on 127.0.0.1:9092, its data under ./data
	@$(BIN)/tidelog start

demo: $(SPARK) ## Orders through a broker, a worker and Spark pipelines, and the proof that all agree (a minute, wants Java)
	@$(BIN)/python -m demo

picture: $(INSTALLED) ## Record a first look in a terminal, into docs/pictures/first-look.svg
	@$(BIN)/python -m demo.recording

test: check ## Check, then run all tests, and some on the compiled build; a few that fail are run once more by themselves, and named
	$(BIN)/python -m tests.second_try -n $(WORKERS)
	$(BIN)/python -m tests.release.compiled some -n $(WORKERS)

# The folders whose tests need neither Spark nor a foreign program, and mostly no process of their own.
QUICK := broker config controller coordinator groups log metadata metrics ports queues raft records replication server transactions wire

quick: $(INSTALLED) ## The loop while editing: tests of the cores and the server, under two minutes, no Spark and no foreign suite
	$(BIN)/ruff check
	$(BIN)/python -m pytest -q -n $(WORKERS) $(addprefix tests/,$(QUICK)) \
		--ignore=tests/log/test_crash_points.py --ignore=tests/log/compaction/test_crashes.py

check: $(SPARK) ## Lint, formatting, types, layering, tidiness
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(wildcard src simulation tests bench examples demo)
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py

bench: $(INSTALLED) ## Measure the storage engine against the raw disk
	$(BIN)/python -m bench

bench-kafka: $(DRAWS) $(MYPYC) ## Measure Tidelog, pure Python and compiled, beside Apache Kafka, into docs/BENCHMARKS.md (15 minutes)
	$(BIN)/python -m bench.beside kafka --write

bench-peers: $(DRAWS) ## Measure Tidelog beside RabbitMQ, NATS JetStream and Redis Streams, into docs/BENCHMARKS.md
	$(PIP_INSTALL) --no-build-isolation --editable '.[peers]'
	$(BIN)/python -m bench.beside peers --write

bench-queues: $(DRAWS) ## Measure queues beside Apache Kafka's share groups, RabbitMQ, NATS JetStream and Redis Streams, into docs/BENCHMARKS.md
	$(PIP_INSTALL) --no-build-isolation --editable '.[peers]'
	$(BIN)/python -m bench.beside share-consumers --write
	$(BIN)/python -m bench.beside queue-peers --write
	$(BIN)/python -m bench.beside queue-service --write

bench-scaling: $(DRAWS) ## Measure how cost grows, and where the time of one message goes, into docs/BENCHMARKS.md
	$(BIN)/python -m bench.beside scaling --write
	$(BIN)/python -m bench.beside milliseconds --write

bench-pauses: $(DRAWS) ## Measure how evenly Tidelog serves for minutes, with every pause, into docs/BENCHMARKS.md (MINUTES=10)
	$(BIN)/python -m bench.beside pauses --write --minutes $(if $(filter file,$(origin MINUTES)),10,$(MINUTES))

bench-spark: $(SPARK) ## Measure the Spark source and sink beside the stock connector
	$(BIN)/python -m bench.spark

bench-pipelines: $(SPARK) ## Measure archive beside the stock connector, as its backlog grows, and after many small batches
	$(BIN)/python -m bench.pipelines

bench-cluster: $(INSTALLED) ## Measure three Tidelogs beside three Kafkas under load and faults, into docs/BENCHMARKS.md (hours; ONLY="kill-leader acks")
	$(BIN)/python -m bench.clusters --write --minutes $(if $(filter file,$(origin MINUTES)),10,$(MINUTES)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only $(ONLY)) $(if $(ON),--on $(ON))

soak: $(SPARK) ## Crash and compare for long (MINUTES=60)
	TIDELOG_SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m soak --timeout=0 tests
	TIDELOG_KILL_ROUNDS=100 $(BIN)/python -m pytest --timeout=0 tests/faults
	for world in broker groups transactions quorum; do $(BIN)/python -m simulation.run --world $$world --seeds 1-1000 || exit 1; done
	$(BIN)/python -m bench.plug tidelog --cuts 10

chaos: $(INSTALLED) ## Kill, pause, stop and cut off brokers of a cluster under clients, and judge what is left (MINUTES=10)
	$(BIN)/python -m tests.faults.chaos --minutes $(if $(filter file,$(origin MINUTES)),10,$(MINUTES)) \
		$(if $(FAULTS),--faults $(FAULTS)) $(if $(EVERY),--every $(EVERY)) $(if $(HISTORY),--history $(HISTORY))

plug: $(INSTALLED) ## Cut the power under Tidelog and its peers, into docs/DURABILITY.md (root, Linux, an hour)
	$(PIP_INSTALL) --no-build-isolation --editable '.[peers]'
	$(BIN)/python -m bench.plug all --write

explore: $(INSTALLED) ## Walk every order of events of a small quorum and of a partition, within wide bounds (hours, and memory to match)
	$(BIN)/python -m simulation.explore --elections 1 --timeouts 2 --entries 1 --crashes 1
	$(BIN)/python -m simulation.explore --elections 2 --timeouts 2 --entries 2 --crashes 1 --losses 1 --changes 1
	$(BIN)/python -m simulation.explore_replication --appends 1 --leader-changes 1 --crashes 1 --changes 1
	$(BIN)/python -m simulation.explore_replication --appends 2 --leader-changes 2 --crashes 1 --changes 1 --losses 1

mutants: $(INSTALLED) ## Plant known bugs one by one; each must be found
	$(BIN)/python -m tests.mutants

mutants-all: $(INSTALLED) ## Change every operator and constant of the cores with mutmut, and print the score (hours)
	$(PIP_INSTALL) --no-build-isolation --editable '.[mutation]'
	$(BIN)/python -m tests.mutants.everywhere

compat: $(SPARK) ## Apache Kafka reads what Tidelog wrote, and the reverse; clients' own test suites on both
	$(BIN)/python -m pytest -m 'apache_kafka or foreign_suite' tests/compatibility tests/bench tests/spark/sink

test-on-kafka: $(SPARK) ## The tests of toolkit, command line and examples on Apache Kafka instead of Tidelog (wants Java and Maven)
	TIDELOG_TEST_ON=kafka $(BIN)/python -m pytest $(wildcard tests/client tests/worker tests/deadletters tests/spark tests/cli tests/examples)

wheel: $(INSTALLED) ## Build the wheel into dist/
	rm -rf dist
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

compile: $(MYPYC) ## Build a wheel whose hot modules are compiled into dist/compiled, and unpack it into build/compiled (wants a C compiler)
	@$(BIN)/python hatch_build.py
	rm -rf dist/compiled build/compiled
	TIDELOG_COMPILED=1 $(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation \
		--wheel-dir dist/compiled .
	$(PIP_INSTALL) --no-deps --target build/compiled dist/compiled/*.whl

test-compiled: $(MYPYC) ## The suites of all cores, the server and the simulation on the compiled build (wants a C compiler)
	$(BIN)/python -m tests.release.compiled all -n $(WORKERS)

release-check: wheel ## Is this tree ready to be released: version, changelog, tag, and the wheel in an empty environment
	$(BIN)/python -m tests.release.check

check-manifests: $(INSTALLED) ## ops/kubernetes.yml against the schemas of Kubernetes and KEDA (wants npm)
	$(PIP_INSTALL) --no-build-isolation --editable '.[manifests]'
	$(BIN)/python -m tests.release.manifests

test-pythons: ## The suites of broker, client and worker on every Python from 3.11 on that pyenv or the path has
	$(PYTHON) -m tests.release.pythons

# What only Linux has, and the tests that are about exactly that; docs/reference/systems.md says so.
LINUX_ONLY := fdatasync gathered nowait sendfile fadvise nice syncfs prctl uvloop resource linux
ABOUT_LINUX := slices_arrive_intact or process_is_shown or series_that_exist or is_cached_and_what or reading_ahead_brings or \
	not_taken_for_an_answer or each_kind_of_sync
COMMA := ,
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)

test-portable: $(INSTALLED) ## The suites of log, broker, server and client without what only Linux has; disk and sending without each of it
	for call in $(LINUX_ONLY); do \
		TIDELOG_TEST_WITHOUT=$$call PYTHONPATH=tests/portability/taken_away $(BIN)/python -m pytest -q \
			tests/ports/test_real_disk.py tests/server/test_send_queue.py -k 'not ($(ABOUT_LINUX))' || exit 1; done
	TIDELOG_TEST_WITHOUT=$(subst $(SPACE),$(COMMA),$(LINUX_ONLY)) PYTHONPATH=tests/portability/taken_away \
		$(BIN)/python -m pytest tests/log tests/broker tests/server tests/client -k 'not ($(ABOUT_LINUX))'

clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src simulation bench demo tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Tidelog needs Python >= 3.11 on the PATH, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }

# The build backends are installed first, at pinned versions, so that no unpinned copies are fetched for builds. A virtual
# environment has no setuptools since Python 3.12.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) hatchling editables setuptools
	$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@

# What draws pictures is large, and only the benchmarks that write pages need it.
$(DRAWS): $(INSTALLED)
	$(PIP_INSTALL) --no-build-isolation --editable '.[bench]'
	@touch $@

$(MYPYC): $(INSTALLED)
	$(PIP_INSTALL) --no-build-isolation --editable '.[compile]'
	@touch $@

# Spark is large as well. The checks read its types, and the tests run it; a broker needs none of it.
$(SPARK): $(INSTALLED)
	$(PIP_INSTALL) --no-build-isolation --editable '.[pipelines]'
	@touch $@
