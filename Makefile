# `make help` lists the targets. Every target sets up what it needs: Python 3.11 or newer and make are enough.

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
NEWEST_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c '$(NEWEST_ENOUGH)' 2>/dev/null && { echo $$p; break; }; done)
MINUTES ?= 3

.PHONY: help test lint format types docs demo setup clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*##  *\(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

test: lint types $(STAMP)  ## lint, types and tests (what CI runs; about 5 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP)  ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## format all Python files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## mypy
	$(BIN)/mypy

docs: $(STAMP)  ## regenerate schema.json, the recipe reference, the results tables and plots
	$(BIN)/python bench/documents.py

demo: $(STAMP)  ## distil, export and measure two students (MINUTES=3 of training; about a quarter of an hour in all)
	$(BIN)/edgedistill demo --minutes $(MINUTES)

setup: $(STAMP)  ## only create the environment

# The stamp comes last, so an interrupted installation is repeated.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer on the path; install one, or run make PYTHON=..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	touch $(STAMP)

clean:  ## remove the environment and what the demo wrote
	rm -rf $(VENV) demo build dist .mypy_cache .pytest_cache .ruff_cache
