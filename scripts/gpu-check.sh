#!/usr/bin/env bash
# gpu-check.sh [FOLDER]: everything that only a GPU can tell about the CUDA kernels, in one run of under ten minutes.
#
# Needs an NVIDIA GPU of compute capability 8.0 or newer, nvcc of CUDA 13, cmake, ninja, and a python3 with PyTorch; no
# package of ours. Builds every kernel here (16 cores: a minute), then, each part with a time limit of its own:
#   mixing            the kernels of convolutions and mixed heads: checks, then times beside the eager form and SDPA
#   check             every form of attention, forward and backward, against float64
#   sanitizers        compute-sanitizer memcheck and racecheck on small cases
#   rows              times beside torch's attention and compiled FlexAttention
#   program           the device tests of the program, where FOVEA_PROGRAM_TESTS names a built test program
# Logs go to FOLDER (build/gpu-check); the table comes last and is gpu-<card>.json there and in benchmarks/results/.
# Exits 1 if a result is wrong or a part failed.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-build/gpu-check}")
mkdir -p "$folder"
python=${FOVEA_PYTHON:-python3}
jobs=$(nproc)
failed=()

say() { echo "[gpu-check] ${SECONDS} s: $*"; }
# part NAME SECONDS COMMAND...: its output goes to FOLDER/NAME.log.
part() {
  local name=$1 limit=$2 start=$SECONDS status=0
  shift 2
  timeout "$limit" "$@" > "$folder/$name.log" 2>&1 || status=$?
  [ "$status" -eq 0 ] || failed+=("$name ($status)")
  say "$name: exit $status after $((SECONDS - start)) s"
}

card=$("$python" -c 'import torch; print(torch.cuda.get_device_name().lower())') || { say "no GPU: $card"; exit 1; }
case $card in *h100*) card=h100 ;; *h200*) card=h200 ;; *a100*) card=a100 ;; *) card=${card//[^a-z0-9]/-} ;; esac
say "$card, $jobs cores"

build_kernels() {
  local torch
  torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
  cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DFOVEA_ONLY_CUDA=ON -DFOVEA_CUDA_UNITS=all \
    -DFOVEA_WERROR=OFF -DFOVEA_FMT_INCLUDE="${FOVEA_FMT_INCLUDE:-$torch/include}" &&
    ninja -C build/gpu -j "$jobs" fovea_gpu_bench
}
export python
export -f build_kernels
export jobs

part build 150 bash -c build_kernels
library=build/gpu/lib/libfovea_gpu_bench.so

part check 70 "$python" benchmarks/gpu.py $library --parts check --seconds 60
part mixing 70 "$python" benchmarks/gpu.py $library --parts mixing --seconds 60 --output "$folder/gpu-mixing-$card.json"
part rows 170 "$python" benchmarks/gpu.py $library --parts plain,settings,focus,flex --seconds 150 \
  --output "$folder/gpu-$card.json"
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck; do
    part $tool 45 compute-sanitizer --tool $tool --error-exitcode 9 "$python" benchmarks/gpu.py $library \
      --parts small --seconds 30
  done
fi
if [ -n "${FOVEA_PROGRAM_TESTS:-}" ]; then
  part program 60 "$FOVEA_PROGRAM_TESTS" --gtest_filter='*Device*'
fi

[ ! -f "$folder/gpu-$card.json" ] || cp "$folder/gpu-$card.json" benchmarks/results/
for name in mixing check memcheck racecheck rows; do
  [ ! -f "$folder/$name.log" ] || { echo "== $name"; tail -n 60 "$folder/$name.log"; }
done
[ ${#failed[@]} -eq 0 ] || { say "failed: ${failed[*]}"; exit 1; }
say "all parts passed"
