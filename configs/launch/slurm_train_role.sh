#!/bin/bash
# ESC-Role on Slurm: two nodes of eight 80 GB GPUs, DDP, by the recipe configs/train/esc_role_qwen1.5_14b.yaml.
# Prerequisite: make setup-gpu, or another environment that ESC_EVAL_VENV names; the recipe's data and base,
# and a disk that all nodes share, so that a resumed run finds its checkpoints.
#   mkdir -p runs && sbatch configs/launch/slurm_train_role.sh
# The same line again resumes from the last checkpoint; a job that Slurm requeues does so by itself.
#
# Expected, from the recipe's header: 1.1 hours on one H100 at 40 % of its peak, so
#   1.1 / 16 + 0.3 = 0.4 hours; the 0.3 are assumed, to load the base and to evaluate (never measured on GPUs here)
#   16 × 0.4 = 6.4 GPU hours; at 2.50 $ an hour 6.4 × 2.50 = 16 $
# On one node of eight it is 1.1 / 8 + 0.3 = 0.4 hours, 8 × 0.4 = 3.2 GPU hours, 3.2 × 2.50 = 8 $: take two only for more data.
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
