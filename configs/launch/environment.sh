# shellcheck shell=bash
# Every Slurm script of this folder begins with this: the environment, with caches on the node's own disk. Not a job by itself.
# Override: ESC_EVAL_VENV=DIR (default .venv of the folder that the job was submitted from), ESC_EVAL_CACHE=DIR, or HF_HOME,
# VLLM_CACHE_ROOT and TRITON_CACHE_DIR one by one. Nodes without a network need a shared HF_HOME that already has the models.
source "${ESC_EVAL_VENV:-.venv}/bin/activate"
cache=${ESC_EVAL_CACHE:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/esc-eval-$UID}
export HF_TOKEN_PATH="${HF_TOKEN_PATH:-${HF_HOME:-$HOME/.cache/huggingface}/token}"  # where `hf auth login` put it
export HF_HOME="${HF_HOME:-$cache/huggingface}"
export VLLM_CACHE_ROOT="${VLLM_CACHE_ROOT:-$cache/vllm}"
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$cache/triton}"
