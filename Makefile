# Everything a clone needs; each environment is made once and again only when pyproject.toml changes.
#   make demo    build SmolLM2-135M-Instruct on the CPU and ask it a question
#   make test    the whole test suite
#   make lint    ruff and mypy
#   make bench   speed beside llama.cpp and transformers, measured in one run

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

PROMPT   ?= What is the capital of France?
SAMPLING ?= greedy

.PHONY: demo test lint bench clean

demo: $(VENV)/.cpu
	$(BIN)/multistage-inference deployment=smollm2 build_if_missing=true prompt="$(PROMPT)" sampling=$(SAMPLING)

test: $(VENV)/.test
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python -m tests.bench

clean:
	rm -rf $(VENV) build dist *.egg-info outputs

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.cpu: EXTRAS = cpu
$(VENV)/.test: EXTRAS = cpu,test,tensorrt-rtx
$(VENV)/.dev: EXTRAS = cpu,test,dev
$(VENV)/.bench: EXTRAS = cpu,bench

$(VENV)/.cpu $(VENV)/.test $(VENV)/.dev $(VENV)/.bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e ".[$(EXTRAS)]"
	@touch $@
