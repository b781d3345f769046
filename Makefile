# What people and CI run. `make demo` and `make test` need nothing but Python 3.11+, git and make.
PYTHON ?= python3
VENV ?= .venv
# Prompts of `make real`: any files of prompts. The ones written for this project are the default.
# SmolLM2 has no tool calls, so those prompts are left out.
PROMPTS ?= $(filter-out %/tool_use.jsonl,$(wildcard prompts/seeds/*.jsonl))

bin := $(VENV)/bin
ready := $(VENV)/.ready
smollm2 := .cache/smollm2-135m
site := NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict

comma := ,
empty :=
space := $(empty) $(empty)

.PHONY: setup demo real test check docs reference bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   prompts to a served draft on the small verifier that comes along (about 10 minutes)"
	@echo "make test   the test suite, a real vLLM included"
	@echo "make check  ruff, mypy, the import order and the documentation's links"
	@echo "make real   the same line on SmolLM2-135M (PROMPTS='a.jsonl b.jsonl' to use your own)"
	@echo "make docs   the documentation's site, into build/site"
	@echo "make bench  the benchmarks"
	@echo "make setup  only install into $(VENV)"

setup: $(ready)

$(ready): pyproject.toml constraints.txt tools/setup.sh tools/vllm_requirements.py
	@PYTHON=$(PYTHON) tools/setup.sh $(VENV)
	@touch $@

demo: setup
	@$(bin)/synthgen run configs/demo.yaml

real: setup $(smollm2)/config.json
	@$(bin)/synthgen run configs/smollm2-135m.yaml \
	    --set "prompts.sources=[$(subst $(space),$(comma),$(strip $(PROMPTS)))]"

$(smollm2)/config.json: models/smollm2-135m/fetch.sh models/smollm2-135m/convert.py
	@models/smollm2-135m/fetch.sh $(bin)/python $(smollm2)

test: setup
	@$(bin)/python -m pytest

check: setup
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@$(bin)/mypy
	@$(bin)/python -m pytest -q tests/test_imports.py
	@$(site) --quiet

docs: setup
	@$(site)

# The pages that are made from the code; a test says when they are behind it.
reference: setup
	@$(bin)/python -m tools.cli_reference
	@$(bin)/python -m tools.config_reference
	@$(bin)/python -m tools.plan_reference

bench: setup
	@for name in journal resume corpus client generation saturation; do \
	    echo "== $$name"; $(bin)/python -m benchmarks.$$name || exit 1; done

clean:
	rm -rf runs .cache
