# The one gate, the same locally and in CI. `make` alone lists the targets.

VENV := .venv
BIN := $(VENV)/bin
VENV_PYTHON := $(CURDIR)/$(BIN)/python
ARGS ?=
BENCH ?=
SECONDS ?= 600
SEEDS ?= 1000
EXAMPLES ?= 20
SEED ?= 1

# A process that has nothing left to do takes tests from the others: most of the time goes into few long tests, which
# lie side by side. One more than cores are common, as some wait for processes that hang.
FAST := -n 3 --dist worksteal -m "not spark" --ignore tests/spark
# Much of a test on Spark is waiting: for a JVM, a trigger, a killed process. A file stays with one process
# and its Spark session; the long ones come first.
ON_SPARK := -n 2 --dist loadfile --no-loadscope-reorder -m spark tests/spark

# Two stamps, since the fast suites and the checks need no Java.
INSTALL_STAMP := $(VENV)/.installed
JAVA_STAMP    := $(VENV)/.java_home

# Spark must start the Python and be the Spark of the virtual environment, and a warning filter from
# outside would change what the tests prove. The suites start hundreds of processes, so compiled modules
# are kept.
export PYSPARK_PYTHON := $(VENV_PYTHON)
export PYSPARK_DRIVER_PYTHON := $(VENV_PYTHON)
unexport PYTHONWARNINGS
unexport PYTHONDONTWRITEBYTECODE
unexport SPARK_HOME
WITH_JAVA = JAVA_HOME="$$(sed -n 1p $(JAVA_STAMP))"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-fast simulate soak conformance check fix bench clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALL_STAMP) $(JAVA_STAMP) ## make .venv, install everything into it, find (or install) Java
	@echo "Ready: $$($(BIN)/python --version), Java in $$(sed -n 1p $(JAVA_STAMP))"

demo: $(INSTALL_STAMP) $(JAVA_STAMP) ## run the demo (ARGS=--help shows its options)
	@$(WITH_JAVA) $(BIN)/python -m examples.traffic $(ARGS)

test: $(INSTALL_STAMP) $(JAVA_STAMP) ## run all suites: the fast ones in parallel, then those on Spark
	@echo "== fast suites"
	@$(WITH_JAVA) $(BIN)/python -m pytest $(FAST) $(ARGS)
	@echo "== on Spark"
	@$(WITH_JAVA) $(BIN)/python -m pytest $(ON_SPARK) $(ARGS)

test-fast: $(INSTALL_STAMP) ## run the suites that need no Spark
	@$(BIN)/python -m pytest $(FAST) $(ARGS)

simulate: $(INSTALL_STAMP) ## seeded simulations against an oracle, on all cores: make simulate SEEDS=100000 ARGS="--moves"
	@$(BIN)/python -m tests.simulator --seeds $(SEEDS) $(ARGS)

soak: $(INSTALL_STAMP) $(JAVA_STAMP) ## random faults on real Spark against an oracle: make soak SECONDS=600 ARGS="--seed 7"
	@$(WITH_JAVA) $(BIN)/python -m tests.soak --seconds $(SECONDS) $(ARGS)

conformance: $(INSTALL_STAMP) $(JAVA_STAMP) ## random transformWithState programs on both engines: make conformance EXAMPLES=200 SEED=7
	@$(WITH_JAVA) EXAMPLES=$(EXAMPLES) SEED=$(SEED) $(BIN)/python -m pytest -m spark $(ARGS) \
		tests/spark/drop_in/test_random_processors.py

check: $(INSTALL_STAMP) ## formatting, lint, types, layers, API reference: what must pass before a commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/markdown.py
	$(BIN)/python scripts/api_reference.py --check
	$(BIN)/python scripts/conformance.py --check
	$(BIN)/mypy scripts
	$(BIN)/mypy -p tests.simulator -p examples
	$(BIN)/lint-imports --no-logo

fix: $(INSTALL_STAMP) ## format, repair what ruff can repair, write the API reference
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python scripts/api_reference.py
	$(BIN)/python scripts/conformance.py
	$(BIN)/python scripts/markdown.py --fix

ifeq ($(strip $(BENCH)),)
bench: ## run a benchmark: make bench BENCH=counter ARGS=--quick (without BENCH: list them)
	@echo "make bench BENCH=<name> [ARGS=...], where <name> is one of:"
	@for file in $$(grep -l 'ArgumentParser' bench/*.py | grep -v _); do \
		printf '  %-12s %s\n' "$$(basename "$$file" .py)" "$$(sed -n '1s/^"""\([^"]*\).*/\1/p' "$$file")"; \
	done
else
bench: $(INSTALL_STAMP) $(JAVA_STAMP)
	@$(WITH_JAVA) $(BIN)/python -m bench.$(BENCH) $(ARGS)
endif

clean: ## remove caches and what Spark leaves behind (.venv and bench/results stay)
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf build dist spark-warehouse metastore_db derby.log
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALL_STAMP): pyproject.toml
	@scripts/setup.sh
	@touch $@

# The Java found, and below it the JAVA_HOME it was found for: looked for again when the one is gone or
# the other has changed.
found_java := $(shell sed -n 1p $(JAVA_STAMP) 2>/dev/null)
asked_java := $(shell sed -n 2p $(JAVA_STAMP) 2>/dev/null)
stale_java := $(if $(wildcard $(found_java)/bin/java),$(filter-out x$(asked_java),x$(JAVA_HOME)),gone)
$(JAVA_STAMP): $(if $(stale_java),FORCE) | $(INSTALL_STAMP)
	@$(BIN)/python scripts/java_home.py --install --log $(VENV)/java-install.log > $@.part || { rm -f $@.part; exit 1; }
	@echo "$(JAVA_HOME)" >> $@.part
	@mv $@.part $@
FORCE:
