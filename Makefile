# `make demo` and `make test` need Python 3.11 or newer, nothing else; they make their own .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
# twice quiet: errors only
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet install

.DEFAULT_GOAL := help
.PHONY: help demo test check proof bench reference format clean

help:  ## say what there is
	@echo 'make demo       see a message delivered, fail, become a dead letter'
	@echo 'make test       the checks and all tests (minutes)'
	@echo 'make check      lint, types, import contracts (seconds)'
	@echo 'make proof      the long tests: crashes, races (about ten minutes)'
	@echo 'make bench      benchmarks against installed peers; GATES=... for a choice of gates'
	@echo 'make reference  write the generated pages of docs/reference'
	@echo 'make format     format the code'
	@echo 'make clean      remove what these made'

demo: $(VENV)/.core
	@$(BIN)/outlast demo $(DEMO_ARGS)

test: check
	@echo 'outlast: running the tests'
	@$(BIN)/pytest tests --ignore=tests/proof -q -n $(JOBS) --dist loadfile $(TEST_ARGS)

check: $(VENV)/.dev
	@echo 'outlast: checking lint, format, types and import contracts'
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python tools/import_contracts.py

proof: $(VENV)/.dev
	@EXAMPLES=50 $(BIN)/pytest tests/proof tests/doors/test_api_schemathesis.py -q -s $(TEST_ARGS)

bench: $(VENV)/.dev
	@$(BIN)/python -m bench $(if $(GATES),--gates $(GATES))

reference: $(VENV)/.dev
	@$(BIN)/python tools/rows.py
	@$(BIN)/python tools/metrics_reference.py
	@$(BIN)/python tools/cli_reference.py
	@$(BIN)/python tools/settings_reference.py
	@$(BIN)/python tools/rest_reference.py

format: $(VENV)/.dev
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache

# the stamps say what is installed; pyproject.toml says what should be

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'outlast: needs Python 3.11 or newer; call make PYTHON=/path/to/it' >&2; exit 1; }
	@echo 'outlast: making $(VENV) (once)'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: pyproject.toml | $(VENV)/.python
	@echo 'outlast: installing outlast and what it needs into $(VENV) (once, under a minute)'
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.python
	@echo 'outlast: installing everything the tests need into $(VENV) (once, a minute or two)'
	@$(BIN)/python tools/dev_requirements.py > $(VENV)/dev-requirements.txt
	@$(PIP) --requirement $(VENV)/dev-requirements.txt
	@touch $(VENV)/.core $@
