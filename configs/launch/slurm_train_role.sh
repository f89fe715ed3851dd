#!/bin/bash
# ESC-Role on Slurm: two nodes of eight 80 GB GPUs, DDP, by the recipe configs/train/esc_role_qwen1.5_14b.yaml.
# Prerequisite: make setup-gpu, or another environment that ESC_EVAL_VENV names; the recipe's data and base,
# and a disk that all nodes share, so that a resumed run finds its checkpoints.
#   mkdir -p runs && sbatch configs/launch/slurm_train_role.sh
# The same command resumes from the last checkpoint; a job that Slurm requeues does so by itself.
#
# Expected, by `python -m train plan` of the recipe (never measured on GPUs here): docs/serve-and-scale.md, "What it would cost".
# One node of eight is enough for the recipe's data: take two only for more.
#SBATCH --job-name=esc-role
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=512G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=runs/%x-%j.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
source configs/launch/environment.sh
NODE0=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
PORT=$((20000 + SLURM_JOB_ID % 10000))  # of this job alone
export NODE0 PORT
# SLURM_NODEID is known on each node only, hence the inner shell. Since Slurm 22.05 srun has to be told a task's CPUs.
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c 'accelerate launch \
  --config_file configs/accelerate/multi_node.yaml --machine_rank "$SLURM_NODEID" \
  --main_process_ip "$NODE0" --main_process_port "$PORT" \
  train/esc_role.py --config configs/train/esc_role_qwen1.5_14b.yaml --gradient_accumulation_steps 1'
