#!/usr/bin/env bash
# Checks a machine with a GPU: the tests marked `gpu`, and benchmarks with CUDA graphs, without them, and on the CPU.
#
#     scripts/gpu_check.sh [OUTPUT]          # default gpu_check; takes about a quarter of an hour
#
# Exit code 3 if there is no CUDA device; otherwise that of the first command that fails.
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-gpu_check}
python=${PYTHON:-python}

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "there is no CUDA device that PyTorch can use" >&2
    exit 3
fi
"$python" -c 'import torch; print(torch.__version__, "CUDA", torch.version.cuda, torch.cuda.get_device_name())'

"$python" -m pytest -m gpu --numprocesses=0

# Training: environment steps/s, updates/s, sizes of inference batches, shares of copies and waiting.
measure() { # NAME FLAG...
    "$python" -m asyncrl.benchmark --modes=async --seeds=1 --measure_s=20 --output="$output/$1" "${@:2}"
}
for way in "cuda auto" "cuda off" "cpu auto"; do
    read -r device compile <<<"$way"
    measure "ppo_${device}_$compile" --env=HalfCheetah-v5 --device="$device" --compile="$compile" \
        --encoder_mlp_layers=[256,256] --warm_up_s=15
    measure "sac_${device}_$compile" --env=HalfCheetah-v5 --algo=sac --device="$device" --compile="$compile" \
        --warm_up_s=30 --warmup_env_steps=2000
done
measure ppo_cuda_bf16 --env=HalfCheetah-v5 --device=cuda --precision=bf16 --encoder_mlp_layers=[256,256] --warm_up_s=15
if "$python" -c 'import ale_py, cv2' 2>/dev/null; then
    measure atari_cuda --env=ALE/Pong-v5 --device=cuda --warm_up_s=30
fi

num_gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
if [ "$num_gpus" -gt 1 ]; then
    measure ranks --env=HalfCheetah-v5 --num_ranks="1,$num_gpus" --encoder_mlp_layers=[256,256] --warm_up_s=15
    measure two_devices --env=HalfCheetah-v5 --learner_device=cuda:0 --inference_devices=cuda:1 \
        --encoder_mlp_layers=[256,256] --warm_up_s=15
fi
echo "reports: $output/*/report.md"
