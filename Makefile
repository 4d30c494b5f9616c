# Every target builds .venv by itself when it is missing, and again when a file that says what belongs in it has changed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS ?=

# The versions are pinned by constraints.txt, not by the package.
INSTALL := $(PIP) install --constraint constraints.txt

.PHONY: help demo test lint format docs clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.demo  ## Fine-tune a real encoder with and without descent constraints, and compare: a few minutes
	$(BIN)/layerdescent compare demo $(ARGS)

test: $(VENV)/.dev  ## Run the tests (ARGS="-k duals" picks some)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

lint: $(VENV)/.dev  ## Check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## Format the code and fix what can be fixed by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## Remove what was built, but neither .venv nor runs/
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt requirements/demo.txt | $(BIN)/python
	@echo "Installing layerdescent into $(VENV): about 2 GB, a minute or more without a word"
	$(INSTALL) --editable .
	$(PIP) install --no-deps --require-hashes --requirement requirements/demo.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(INSTALL) --editable '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.demo
	$(INSTALL) --editable '.[docs]'
	@touch $@
