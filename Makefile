# `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help venv demo test bench lint clean

PYTHON := .venv/bin/python
# what the bench traces needs root; root itself may have no sudo
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

venv: ## install coldtrace into .venv, with the Debian packages it needs
	@scripts/setup.sh venv

demo: ## install a real vLLM (CPU) and a small model into .demo, and trace a start of it
	@scripts/setup.sh venv demo tracefs
	@$(PYTHON) scripts/demo.py

test: ## run the tests; COLDTRACE_TEST_REAL=1: none may be skipped, =0: none that trace
	@scripts/test.sh $(ARGS)

bench: ## measure what tracing costs a real start
	@scripts/setup.sh venv demo tracefs
	@$(SUDO) $(PYTHON) tests/bench/run.py $(ARGS)

lint: ## check style, types and which way imports point
	@scripts/setup.sh venv
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q tests/test_imports.py

clean: ## remove what make installed and what the tools cached
	rm -rf .venv .demo build *.egg-info .mypy_cache .pytest_cache .ruff_cache
