# `make study` and `make test` set everything up by themselves, on a machine with Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?= study

.PHONY: study test check tests clean
.DEFAULT_GOAL := study

study: $(READY)  ## the main job: table, verdict and report.html
	$(BIN)/causal-attn study --out $(OUT) $(ARGS)

test: check tests  ## lint, types, import contract and tests

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

tests: $(READY)
	$(BIN)/python -m pytest

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, found " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[study,dev]'
	touch $(READY)

clean:
	rm -rf $(VENV)
