#!/bin/bash
# One supporter as one vLLM server over two nodes of eight GPUs: sixteen copies (data parallel) under Ray, and a run.
# For your own supporter, if it fits one GPU and gets many calls; `serve.replicas` on single nodes keeps each dialogue with its
# cache, and is better if it suffices. These GPUs have no room for other models: seeker and judge are served elsewhere
# (SEEKER_URL, JUDGE_URL).
# Prerequisite: pip install -c configs/constraints-gpu.txt -e '.[gpu,ray]' into .venv, or into what ESC_EVAL_VENV names; a spec
# (SUPPORTER) with serve: {data_parallel: 16, data_parallel_local: 8}.
#   mkdir -p runs && sbatch --export=ALL,SUPPORTER=mine.yaml,SEEKER_URL=http://HOST:8000/v1,JUDGE_URL=http://HOST:8001/v1 \
#     configs/launch/slurm_ray.sh
# Override: RAY_WAIT=600, seconds that the second node may take to join (default 300); after them the job fails.
#SBATCH --job-name=esc-eval-ray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=512G
#SBATCH --time=04:00:00
#SBATCH --output=runs/%x-%j.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
source configs/launch/environment.sh
NODE0=$(hostname -i | cut -d ' ' -f 1)  # the batch script runs on the first node, the head of the cluster
PORT=$((20000 + SLURM_JOB_ID % 10000))  # of this job alone: two jobs on one node would join one cluster
export RAY_ADDRESS="$NODE0:$PORT"
trap 'kill "${worker:-}" 2>/dev/null || true; ray stop; wait' EXIT
ray start --head --node-ip-address "$NODE0" --port "$PORT" --num-gpus 8
# Since Slurm 22.05 srun has to be told a task's CPUs.
srun --nodes=1 --ntasks=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --relative=1 \
  ray start --address "$RAY_ADDRESS" --num-gpus 8 --block &
worker=$!
until ray status | grep -q '/16.0 GPU'; do
  if ! kill -0 "$worker" 2>/dev/null; then
    echo "error: Ray on the second node of $SLURM_JOB_NODELIST ended before it joined $RAY_ADDRESS; its words stand above" >&2
    exit 1
  fi
  if ((SECONDS > ${RAY_WAIT:-300})); then
    echo "error: the second node of $SLURM_JOB_NODELIST did not join Ray at $RAY_ADDRESS within ${RAY_WAIT:-300} s" >&2
    exit 1
  fi
  sleep 2
done
esc-eval run --config configs/eval/esc_eval.yaml --supporter "$SUPPORTER" \
  --set "endpoints.esc-role=$SEEKER_URL" --set "endpoints.esc-rank=$JUDGE_URL" --out "${OUT:-runs/ray}"
