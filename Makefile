# make test   lint, types, tests          make demo   the whole line in a quarter of an hour
# make setup  only the environment        make clean  away with it, and with what the demo made
# Every target sets up what it needs: Python 3.11 or newer and make are enough.

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
NEWEST_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c '$(NEWEST_ENOUGH)' 2>/dev/null && { echo $$p; break; }; done)
MINUTES ?= 3

.PHONY: test lint types demo setup clean

test: lint types $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

demo: $(STAMP)
	$(BIN)/edgedistill demo --minutes $(MINUTES)

setup: $(STAMP)

# Last of all the stamp: an install that was interrupted is done again.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer on the path; install one, or say make PYTHON=..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo build dist .mypy_cache .pytest_cache .ruff_cache
