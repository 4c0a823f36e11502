#!/usr/bin/env bash
# What only a machine with a GPU can show: the tests marked `gpu`, and a benchmark on the GPU beside the CPU.
#
#     scripts/gpu_check.sh [OUTPUT]          # default gpu_check; takes a few minutes
#
# Exit code 3 if there is no CUDA device; otherwise that of the first thing that fails.
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-gpu_check}
python=${PYTHON:-python}

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "there is no CUDA device that PyTorch can use" >&2
    exit 3
fi
"$python" -c 'import torch; print(torch.__version__, "CUDA", torch.version.cuda, torch.cuda.get_device_name())'

# 5: no test is marked so.
"$python" -m pytest -m gpu || { code=$?; [ "$code" -eq 5 ] || exit "$code"; }

for device in cuda cpu; do
    "$python" -m asyncrl.benchmark --env=HalfCheetah-v5 --modes=async --seeds=1 --device="$device" \
        --encoder_mlp_layers=[256,256] --warm_up_s=15 --measure_s=20 --output="$output/ppo_$device"
    "$python" -m asyncrl.benchmark --env=HalfCheetah-v5 --algo=sac --modes=async --seeds=1 --device="$device" \
        --warm_up_s=30 --measure_s=20 --warmup_env_steps=2000 --output="$output/sac_$device"
done

num_gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
if [ "$num_gpus" -gt 1 ]; then
    "$python" -m asyncrl.benchmark --env=HalfCheetah-v5 --modes=async --seeds=1 --num_ranks="1,$num_gpus" \
        --encoder_mlp_layers=[256,256] --warm_up_s=15 --measure_s=20 --output="$output/ranks"
fi
echo "reports: $output/*/report.md"
