# make demo: the main job on embedded real data.   make test: lint and the whole test suite.
# Both create .venv where it is missing. PYTHON=python3.12 picks the interpreter.
# The demo's clients run in the ServerApp's process: Flower's own simulation takes 0.1 s for a message.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PYTEST := $(BIN)/python -m pytest --numprocesses
# One more than there are cores: some tests wait for programs that they start.
WORKERS := $(shell $(PYTHON) -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))')

# Tests start hundreds of processes: what one of them has compiled the others load.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test suite test-deploy soak lint docs docs-settings notebooks dist install clean

# The number after the time is a process's: two demos may begin in the same second.
demo: $(INSTALLED)
	$(BIN)/python deploy/flwr_run.py . \
	  --run-config 'algorithm="phsfl" alpha=0.1 global-rounds=20 batches-per-epoch=4 batch-size=16 \
	    engine="in-process" output-dir="$(CURDIR)/results/demo-$(shell date +%Y%m%d-%H%M%S)-'$$$$'"' \
	  --federation-config "num-supernodes=8 client-resources-num-cpus=1 init-args-log-to-driver=false"

# Beside each other: the type checker takes one core, and a minute where it has no cache.
test: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs 2 lint suite

suite: $(INSTALLED)
	$(PYTEST) $(WORKERS) --dist worksteal

# Real SuperLinks on this machine, for SuperNodes and for simulations, and workers of Ray that die; some minutes.
# These tests have time limits of their own. Two at once: each keeps up to twenty processes, which are never idle.
test-deploy: $(INSTALLED)
	$(PYTEST) 2 --dist load --maxschedchunk 1 -o faulthandler_timeout=3600 -m deploy

# Two tiers on this machine under faults every few seconds, an hour long: docs/soak.md.
soak: $(INSTALLED)
	PYTHONPATH=.:deploy $(BIN)/python -m tests.deploy.soak --seconds $(or $(SOAK_SECONDS),3600) \
	  --transport $(or $(SOAK_TRANSPORT),messages) \
	  "$(CURDIR)/results/soak-$(shell date +%Y%m%d-%H%M%S)"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site of the documentation, into site/: warnings, and links that lead nowhere, are errors.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The tables of docs/configuration.md and the settings in pyproject.toml files, from app/settings/.
docs-settings: $(INSTALLED)
	$(BIN)/python docs/settings_tables.py

# The notebooks in examples/notebooks, run anew, with what their cells print and draw.
notebooks: $(INSTALLED)
	$(BIN)/python docs/notebooks.py

# The wheel and the source distribution, installed into an empty environment for each Python from 3.11 on that is here.
dist: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.dist dist

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv
