# make demo: a virtual environment, two minutes of training on a book on a CPU, and a page of the model.
# make docs: the documentation as a site in site/, which a browser opens without a network.
# make fuzz: a minute of damaged files for every reader, guided by coverage (Linux).
# make quick: lint, and the tests of the rooms that differ from the branch main.
# make test: a virtual environment, lint, types, the fast tests, on every core a process with one thread.
# make test-cluster: training on a Slurm cluster and on several hosts, all on this machine, as root on Debian.
# make test-launchers: the examples for Kubernetes, SkyPilot, Ray Train and datatrove.
# make test-serving: other programs' clients and lm-evaluation-harness use `minigpt serve`.
# make test-isa: the tests of results that depend on rounding, on an x86 processor, with instruction sets switched off.
# make test-triton: the Triton kernels for CUDA, in Triton's interpreter and compiled for two GPUs, without a GPU.
# make test-torch: the tests of the code for CUDA and a short training with another PyTorch: TORCH=2.14, by default 2.11.
# make wasm: the WebAssembly modules of `minigpt export --to html`, from their C; they are in the repository.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo docs quick test test-cluster test-isa test-launchers test-serving test-torch test-triton isa-plain isa-avx2 isa-avx512 lint types \
	types-here types-tests types-win32 types-darwin fuzz wasm clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "minigpt needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -f $(BIN)/python; exit 1; }

# An environment that uv or `python -m venv --without-pip` has made has no pip.
$(VENV)/.pip: | $(BIN)/python
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
	@touch $@

$(VENV)/.demo: pyproject.toml setup.py constraints.txt $(wildcard minigpt/native/*.[ch]) | $(VENV)/.pip
	$(INSTALL) -e '.[plot]'
	@touch $@

$(VENV)/.test: pyproject.toml setup.py constraints.txt $(wildcard minigpt/native/*.[ch]) | $(VENV)/.pip
	$(INSTALL) -e '.[plot,test]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/python demo/demo.py --from starter
	@printf '%s\n' '' 'Next:' \
		'  $(BIN)/minigpt play                    write a story together with this model' \
		'  $(BIN)/minigpt train YOUR_TEXT.txt     a model of your own text' \
		'  $(BIN)/minigpt --help                  everything else'

quick: $(VENV)/.test lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical $$($(BIN)/python .ci/changed_tests.py)

test: $(VENV)/.test lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical

# The settings reach PyTorch's own kernels, oneDNN, MKL and our C code, in this order; then the number of threads.
ISA_TESTS ?= tests/model tests/native tests/foundations tests/generation tests/importers tests/exporters \
	tests/inspection tests/storage tests/training tests/speculation tests/distillation tests/lora
isa-plain: SETTINGS = ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 \
	MINIGPT_CPU_ISA=plain OMP_NUM_THREADS=1
isa-avx2: SETTINGS = ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	MINIGPT_CPU_ISA=avx2 OMP_NUM_THREADS=2
# Without AMX. A processor without AVX-512 refuses this MINIGPT_CPU_ISA; it keeps its own best.
isa-avx512: SETTINGS = ONEDNN_MAX_CPU_ISA=AVX512_CORE OMP_NUM_THREADS=2 \
	$(shell grep -qs avx512_vnni /proc/cpuinfo && echo MINIGPT_CPU_ISA=avx512-vnni)

test-isa: isa-plain isa-avx2 isa-avx512

isa-plain isa-avx2 isa-avx512: $(VENV)/.test
	env $(SETTINGS) $(BIN)/python -m pytest $(ISA_TESTS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(MAKE) -j2 types-here types-tests types-win32 types-darwin

types-here:
	$(BIN)/mypy

types-tests:
	$(BIN)/mypy --config-file .ci/mypy-names.ini --cache-dir .mypy_cache/tests tests

types-win32 types-darwin: types-%:
	$(BIN)/mypy --config-file .ci/mypy-names.ini --platform $* --cache-dir .mypy_cache/$* minigpt cli.py

# The clients have many dependencies of their own, so they get an environment of their own.
test-serving: $(BIN)/python
	$(PYTHON) -m venv $(VENV)-serving
	$(VENV)-serving/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,clients]'
	OMP_NUM_THREADS=1 $(VENV)-serving/bin/python -m pytest -m serving -W default tests/serving_clients

# The programs come from Debian's packages, installed where this is root. What cannot run here is skipped with its reason.
# CLUSTER_TESTS="-m 'cluster and not slow'" is the short form, one or two minutes; the whole takes about half an hour.
CLUSTER_TESTS ?= -m cluster --ignore=tests/cluster/test_examples.py
test-cluster: $(VENV)/.test
	$(INSTALL) -e '.[plot,test,datatrove]'
	tests/cluster/install.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(CLUSTER_TESTS) tests/cluster

# Ray, datatrove and the validators of Kubernetes and SkyPilot have many dependencies of their own, so they get an environment.
test-launchers: $(BIN)/python
	$(PYTHON) -m venv $(VENV)-launchers
	$(VENV)-launchers/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,launchers]'
	$(VENV)-launchers/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[datatrove]'
	OMP_NUM_THREADS=1 $(VENV)-launchers/bin/python -m pytest -m cluster -W default tests/cluster/test_examples.py
	OMP_NUM_THREADS=1 $(VENV)-launchers/bin/python -m pytest -W default tests/large_corpora/test_datatrove.py

# Triton comes with PyTorch for CUDA only; its interpreter fails with a newer numpy.
test-triton: $(BIN)/python
	$(PYTHON) -m venv $(VENV)-triton
	$(VENV)-triton/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	$(VENV)-triton/bin/python -m pip install --quiet --disable-pip-version-check 'triton==3.6.0' 'numpy<2.4'
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(VENV)-triton/bin/python -m pytest -W default tests/cuda/test_triton_step.py
	OMP_NUM_THREADS=1 $(VENV)-triton/bin/python -m pytest -W default tests/cuda/test_triton_step.py

# PyTorch for CUDA takes 6 GB of disk; no GPU is needed.
TORCH ?= 2.11
test-torch:
	$(PYTHON) -m venv $(VENV)-torch
	sed /^torch==/d constraints.txt >$(VENV)-torch/constraints.txt
	$(VENV)-torch/bin/python -m pip install --quiet --disable-pip-version-check -c $(VENV)-torch/constraints.txt \
		'torch==$(TORCH).*' -e '.[test]'
	touch $(VENV)-torch/.installed
	OMP_NUM_THREADS=1 $(VENV)-torch/bin/python -m pytest -W default tests/test_pretended_cuda.py tests/cuda \
		tests/training/test_compilation.py tests/lora/test_compilation.py tests/distillation/test_compilation.py
	$(VENV)-torch/bin/minigpt train demo/sherlock_holmes.txt --steps 20 --eval-every 10 --no-report \
		--checkpoints $(VENV)-torch/checkpoints
	$(VENV)-torch/bin/minigpt generate Holmes --max-new-tokens 20 --checkpoints $(VENV)-torch/checkpoints

# The packages of the extra without minigpt and PyTorch, which the site is not built with.
# A broken link is a warning: an error with --strict, but not with --quiet.
DOCS_PACKAGES := import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")
docs: $(BIN)/python
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -c '$(DOCS_PACKAGES)' | \
		$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r /dev/stdin
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/python -m mkdocs build --strict
	@echo 'open site/index.html'

fuzz: $(VENV)/.test
	$(INSTALL) -e '.[plot,test,fuzz]'
	$(BIN)/python tests/fuzz/readers.py

wasm: | $(VENV)/.pip
	$(INSTALL) 'ziglang==0.15.2'
	$(BIN)/python minigpt/exporters/html/build_wasm.py

clean:
	rm -rf $(VENV) $(VENV)-docs $(VENV)-launchers $(VENV)-serving $(VENV)-torch $(VENV)-triton demo/*.html build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
