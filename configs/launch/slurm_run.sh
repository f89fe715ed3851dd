#!/bin/bash
# ESC-Eval's 655 cards × 14 supporters on Slurm: seven jobs of four 80 GB GPUs, one shard each, then the merge.
# Prerequisite: make setup-gpu, or another environment that ESC_EVAL_VENV names; the checkpoints and cards that
# configs/eval/esc_eval_full.yaml asks for, and a shared disk that supports file locks (flock).
#   mkdir -p runs && sbatch configs/launch/slurm_run.sh
#   sbatch --dependency=afterok:JOB --output=runs/merge-%j.log \
#     --wrap '"${ESC_EVAL_VENV:-.venv}/bin/esc-eval" merge $(seq -f runs/full-%g 7) --out runs/full'
# Override example, other supporters and parts: sbatch --array=1-4 --export=ALL,CONFIG=my.yaml,OUT=runs/mine configs/launch/slurm_run.sh
# The same command resumes what was interrupted; a job that Slurm requeues does so by itself.
#
# Expected, by the planner (never measured on GPUs here): docs/serve-and-scale.md, "What it would cost". For your GPUs and supporters,
#   esc-eval run --config configs/eval/esc_eval_full.yaml --shard 1/7 --plan --gpus 4xh100
# prints the servers of a job, its hours and GPU hours. Fewer jobs load models less often, but take longer.
#SBATCH --job-name=esc-eval
#SBATCH --array=1-7
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=256G
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=runs/%x-%A-%a.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
source configs/launch/environment.sh
esc-eval run --config "${CONFIG:-configs/eval/esc_eval_full.yaml}" \
  --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --out "${OUT:-runs/full}-$SLURM_ARRAY_TASK_ID"
