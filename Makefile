# `make study` and `make test` set everything up by themselves, on a machine with Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?= study
ARVIZ1 := .venv-arviz1
# A Python 3.12, on PATH or in pyenv, that runs (pyenv's shim may not) and can make an environment; or nothing.
PYTHON312 := $(shell for p in "$$(command -v python3.12)" "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.12*/bin/python3.12; \
	do "$$p" -c 'import ensurepip, venv' 2>/dev/null && echo "$$p" && break; done)

.PHONY: study test check tests tests-arviz1 clean
.DEFAULT_GOAL := study

study: $(READY)  ## the main job: table, verdict and report.html
	$(BIN)/causal-attn study --out $(OUT) $(ARGS)

test: check tests tests-arviz1  ## lint, types, import contract and tests

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

tests: $(READY)
	$(BIN)/python -m pytest

tests-arviz1: $(if $(PYTHON312),$(ARVIZ1)/.ready)  ## interop/arviz.py once more, with ArviZ 1.x and without torch
ifeq ($(PYTHON312),)
	@echo "ArviZ 1.x was NOT tested: no python3.12 that can make an environment, neither on PATH nor in pyenv"
else
	$(ARVIZ1)/bin/python -m pytest --confcutdir=tests/interop tests/interop/test_arviz.py
endif

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, found " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[study,dev]'
	touch $(READY)

$(ARVIZ1)/.ready: constraints-arviz1.txt
	$(PYTHON312) -m venv $(ARVIZ1)
	$(ARVIZ1)/bin/python -m pip install --quiet --disable-pip-version-check --requirement constraints-arviz1.txt
	touch $@

clean:
	rm -rf $(VENV) $(ARVIZ1)
