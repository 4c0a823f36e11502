# An image with asyncrl, its presets and MuJoCo.
#
#   docker build --target=cpu -t asyncrl .
#   docker build --target=cuda -t asyncrl:cuda .
#   docker run --rm --init --user="$(id -u):$(id -g)" -v "$PWD:/work" asyncrl train --env=CartPole-v1
#   docker run --rm --init --gpus=all -v "$PWD:/work" asyncrl:cuda train --env=Humanoid-v5 --device=cuda
#
# Shared memory is anonymous files, so --shm-size need not be raised. The image draws nothing: it has no pygame and no ffmpeg.

FROM debian:bookworm-slim AS base
RUN apt-get update && \
    apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv && \
    rm -rf /var/lib/apt/lists/* && \
    python3 -m venv /opt/asyncrl
ENV PATH=/opt/asyncrl/bin:$PATH PYTHONUNBUFFERED=1
# What the tested versions are; torch is chosen by each target.
COPY constraints.txt /opt/constraints.txt

# Compiles the native core, and faster-fifo where it has no wheel; the image has no compiler.
FROM base AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ python3-dev
COPY . /source
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels /source && \
    pip wheel --no-cache-dir --no-deps --wheel-dir /wheels $(grep "^faster-fifo==" /opt/constraints.txt)

FROM base AS cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" $(grep "^torch==" /opt/constraints.txt)
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir -c /opt/constraints.txt /wheels/faster_fifo*.whl "$(ls /wheels/asyncrl-*.whl)[mujoco]"
WORKDIR /work
ENTRYPOINT ["asyncrl"]
CMD ["--help"]

# PyPI's build of torch has the CUDA libraries; the driver is the host's.
FROM base AS cuda
RUN pip install --no-cache-dir $(grep "^torch==" /opt/constraints.txt)
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir -c /opt/constraints.txt /wheels/faster_fifo*.whl "$(ls /wheels/asyncrl-*.whl)[mujoco]"
WORKDIR /work
ENTRYPOINT ["asyncrl"]
CMD ["--help"]
