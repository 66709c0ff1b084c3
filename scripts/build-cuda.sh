#!/usr/bin/env bash
# build-cuda.sh [JOBS]: the library of CUDA kernels with all forms and that of exchanges between GPUs, where nvcc of CUDA 13
# is; build/ otherwise as it was.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
[ -f build/build.ninja ] || scripts/build.sh release "${1:-1}" fovea
cmake -S . -B build -DFOVEA_CUDA_UNITS=all > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
if [ ! -f build/cuda/units.cpp ]; then
  grep 'CUDA kernels of ours' "$log" || true
  echo "[build] attention on the GPU is computed by torch's operations"
  exit 0
fi
targets=(fovea_cuda)
! grep -q '^build fovea_nccl:' build/build.ninja || targets+=(fovea_nccl) # where nccl.h of torch's version is
scripts/build.sh release "${1:-1}" "${targets[@]}"
