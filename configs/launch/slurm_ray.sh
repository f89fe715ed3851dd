#!/bin/bash
# One supporter as one vLLM server over two nodes of eight GPUs: sixteen copies (data parallel) under Ray, and a run beside it.
# For a supporter of your own that is small enough for one GPU and asked often; `serve.replicas` on single nodes keeps dialogues
# with their cache and is the better choice where it suffices. Nothing else of the run fits on these GPUs: seeker and judge answer
# elsewhere (SEEKER_URL, JUDGE_URL).
# Prerequisite: pip install '.[gpu]' ray into the environment that ESC_EVAL_VENV names (default .venv); a spec (SUPPORTER) with
# serve: {data_parallel: 16, data_parallel_local: 8}.
#   mkdir -p runs && sbatch --export=ALL,SUPPORTER=mine.yaml,SEEKER_URL=http://HOST:8000/v1,JUDGE_URL=http://HOST:8001/v1 \
#     configs/launch/slurm_ray.sh
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
source "${ESC_EVAL_VENV:-.venv}/bin/activate"
NODE0=$(hostname -i | cut -d ' ' -f 1)  # the batch script runs on the first node, the head of the cluster
ray start --head --node-ip-address "$NODE0" --port 6379 --num-gpus 8
srun --nodes=1 --ntasks=1 --relative=1 ray start --address "$NODE0:6379" --num-gpus 8 --block &
trap 'ray stop; wait' EXIT
for _ in $(seq 60); do
  if ray status | grep -q '/16.0 GPU'; then break; fi
  sleep 5
done
esc-eval run --config configs/eval/esc_eval.yaml --supporter "$SUPPORTER" \
  --endpoint "esc-role=$SEEKER_URL" --endpoint "esc-rank=$JUDGE_URL" --out "${OUT:-runs/ray}"
