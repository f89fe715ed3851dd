#!/bin/bash
# ESC-Eval's 655 cards × 14 supporters on Slurm: thirteen jobs of four 80 GB GPUs, one shard each, then the merge.
# Prerequisite: pip install '.[gpu]' into the environment that ESC_EVAL_VENV names (default .venv), the checkpoints and cards that
# configs/eval/esc_eval_full.yaml asks for, and a disk that all nodes share and that knows file locks (flock).
#   mkdir -p runs && sbatch configs/launch/slurm_run.sh
#   sbatch --dependency=afterok:JOB --output=runs/merge-%j.log \
#     --wrap '"${ESC_EVAL_VENV:-.venv}/bin/esc-eval" merge $(seq -f runs/full-%g 13) --out runs/full'
# Override example, other supporters and parts: sbatch --array=1-4 --export=ALL,CONFIG=my.yaml,OUT=runs/mine configs/launch/slurm_run.sh
# The same line again resumes what was cut off; a job that Slurm requeues does so by itself.
#
# Expected (assumed, never measured on GPUs here; the formula stands beside every figure, put your own rates in):
#   8,522 dialogues / 13 = 655.5 a job; 5 exchanges of 40 tokens (seeker, 14B) and 150 tokens (supporter, 7B), judge reads 1,340
#   655.5 × 5 × 40 / 1,000 tokens a second = 131 s; 655.5 × 5 × 150 / 2,000 = 246 s; 655.5 × 1,340 / 10,000 = 88 s
#   one after the other 131 + 246 + 88 = 465 s; 735 s to load and start four servers: 465 + 735 = 1,200 s; 1,200 / 3,600 = 0.33 hours
#   13 × 4 × 0.33 = 17.2 GPU hours; at 2.50 $ an hour 17.2 × 2.50 = 43 $; 0.33 hours when all run at once
#   The two closed supporters besides: 2 × 655 × 5 = 6,550 calls, each of 420 tokens in and 150 out (assumed):
#   6,550 × 420 = 2,751,000 tokens in, 6,550 × 150 = 982,500 tokens out, at your provider's price
#SBATCH --job-name=esc-eval
#SBATCH --array=1-13
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
source "${ESC_EVAL_VENV:-.venv}/bin/activate"
esc-eval run --config "${CONFIG:-configs/eval/esc_eval_full.yaml}" \
  --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --out "${OUT:-runs/full}-$SLURM_ARRAY_TASK_ID"
