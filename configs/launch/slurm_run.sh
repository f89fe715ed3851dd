#!/bin/bash
# ESC-Eval's 655 cards × 14 supporters on Slurm: seven jobs of four 80 GB GPUs, one shard each, then the merge.
# Prerequisite: make setup-gpu, or another environment that ESC_EVAL_VENV names; the checkpoints and cards that
# configs/eval/esc_eval_full.yaml asks for, and a disk that all nodes share and that knows file locks (flock).
#   mkdir -p runs && sbatch configs/launch/slurm_run.sh
#   sbatch --dependency=afterok:JOB --output=runs/merge-%j.log \
#     --wrap '"${ESC_EVAL_VENV:-.venv}/bin/esc-eval" merge $(seq -f runs/full-%g 7) --out runs/full'
# Override example, other supporters and parts: sbatch --array=1-4 --export=ALL,CONFIG=my.yaml,OUT=runs/mine configs/launch/slurm_run.sh
# The same line again resumes what was cut off; a job that Slurm requeues does so by itself.
#
# Expected (assumed, never measured on GPUs here; the formula stands beside every figure, put your own rates in):
#   8,522 dialogues / 7 = 1,217.4 a job; 5 exchanges of 40 tokens (seeker, 14B) and 150 tokens (supporter, 7B), judge reads 1,340
#   1,217.4 × 5 × 40 / 1,000 tokens a second = 243 s; 1,217.4 × 5 × 150 / 2,000 = 457 s; 1,217.4 × 1,340 / 10,000 = 163 s
#   one after the other 243 + 457 + 163 = 863 s; at most five servers (three supporters), 184 s each to load and start:
#   5 × 184 = 920 s; 863 + 920 = 1,783 s; 1,783 / 3,600 = 0.50 hours
#   7 × 4 × 0.50 = 14.0 GPU hours; at 2.50 $ an hour 14.0 × 2.50 = 35 $; 0.50 hours when all run at once
#   By `esc-eval run --plan --gpus 80,80,80,80` a shard's servers are all up at once (SoulChat's size is not known before it is converted).
#   Thirteen jobs (--array=1-13) load four servers each: 0.33 hours, 13 × 4 × 0.33 = 17.2 GPU hours, 17.2 × 2.50 = 43 $
#   The two closed supporters besides: 2 × 655 × 5 = 6,550 calls, each of 420 tokens in and 150 out (assumed):
#   6,550 × 420 = 2,751,000 tokens in, 6,550 × 150 = 982,500 tokens out, at your provider's price
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
