# make demo: a virtual environment, a corpus, two minutes of training on a CPU, a sample.
# make test: a virtual environment, lint, types, the fast tests, on every core a process with one thread.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "minigpt needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml setup.py constraints.txt $(wildcard minigpt/generation/engines/*.[ch]) | $(BIN)/python
	$(INSTALL) -e '.[plot]'
	@touch $@

$(VENV)/.test: pyproject.toml setup.py constraints.txt $(wildcard minigpt/generation/engines/*.[ch]) | $(BIN)/python
	$(INSTALL) -e '.[plot,test]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/python benchmarks/python_corpus.py demo/python.txt
	$(BIN)/minigpt train demo/python.txt --minutes 2 --checkpoints demo/checkpoints
	$(BIN)/minigpt generate "The following example" --checkpoints demo/checkpoints --seed 1

test: $(VENV)/.test lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
