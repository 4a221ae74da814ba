# make demo: a virtual environment, a corpus, two minutes of training on a CPU, a sample.
# make fuzz: a minute of damaged files for every reader, guided by coverage (Linux).
# make test: a virtual environment, lint, types, the fast tests, on every core a process with one thread.
# make test-isa: the tests of results that depend on rounding, on an x86 processor, with instruction sets switched off.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-isa isa-plain isa-avx2 isa-avx512 lint types fuzz clean

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

# The settings reach PyTorch's own kernels, oneDNN, MKL and decode.c, in this order; then the number of threads.
ISA_TESTS ?= tests/model tests/foundations tests/generation tests/importers tests/exporters tests/inspection \
	tests/storage tests/training
isa-plain: SETTINGS = ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 \
	MINIGPT_CPU_ISA=plain OMP_NUM_THREADS=1
isa-avx2: SETTINGS = ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	MINIGPT_CPU_ISA=avx2 OMP_NUM_THREADS=2
isa-avx512: SETTINGS = ONEDNN_MAX_CPU_ISA=AVX512_CORE OMP_NUM_THREADS=2

test-isa: isa-plain isa-avx2 isa-avx512

isa-plain isa-avx2 isa-avx512: $(VENV)/.test
	env $(SETTINGS) $(BIN)/python -m pytest $(ISA_TESTS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

fuzz: $(VENV)/.test
	$(INSTALL) -e '.[plot,test,fuzz]'
	$(BIN)/python tests/fuzz/readers.py

clean:
	rm -rf $(VENV) demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
