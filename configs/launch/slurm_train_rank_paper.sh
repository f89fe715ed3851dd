#!/bin/bash
# The paper's fourteen rankers on Slurm: one 80 GB GPU each, by the recipe configs/train/esc_rank_internlm2_7b_paper.yaml.
# Prerequisite: make setup-gpu, or another environment that ESC_EVAL_VENV names; the recipe's data and converted base.
#   mkdir -p runs && sbatch configs/launch/slurm_train_rank_paper.sh
# Override example, English only: sbatch --array=0-6 configs/launch/slurm_train_rank_paper.sh
# The same command resumes from the last checkpoints. One adapter for all dimensions (esc_rank_internlm2_7b.yaml) needs no job of
# its own; its header has the line.
#
# Expected, by `python -m train plan` of the recipe (never measured on GPUs here): docs/serve-and-scale.md, "What it would cost".
#SBATCH --job-name=esc-rank
#SBATCH --array=0-13
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=runs/%x-%A-%a.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
source configs/launch/environment.sh
dimensions=(fluency expression empathy information humanoid skill overall)
languages=(en zh)
dimension=${dimensions[SLURM_ARRAY_TASK_ID % 7]}
language=${languages[SLURM_ARRAY_TASK_ID / 7]}
accelerate launch --config_file configs/accelerate/single_gpu.yaml train/esc_rank.py \
  --config configs/train/esc_rank_internlm2_7b_paper.yaml --dimension "$dimension" --language "$language" \
  --output_dir "runs/esc-rank-paper/$dimension-$language" --run_name "esc-rank-paper-$dimension-$language"
