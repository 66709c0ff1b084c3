#!/usr/bin/env bash
# gpu-check.sh [FOLDER]: everything that only a GPU can tell about the CUDA kernels, in one run of under ten minutes.
#
# Needs an NVIDIA GPU of compute capability 8.0 or newer, nvcc of CUDA 13, cmake, ninja, and a python3 with PyTorch; no
# package of ours. Builds every kernel here (16 cores: a minute), then, each part with a time limit of its own:
#   mixing            the kernels of convolutions and mixed heads: checks, then times beside the eager form and SDPA
#   check             every form of attention, forward and backward, against float64
#   sanitizers        compute-sanitizer memcheck and racecheck on small cases
#   rows              times beside torch's attention and compiled FlexAttention
#   program           tests and speeds of the program, where FOVEA_PROGRAM_BIN names a folder with attention_test, nn_test,
#                     infer_test, fovea and train_step_worker (torch's libraries on LD_LIBRARY_PATH); decoding where
#                     FOVEA_MODEL names a folder with config.json and tokenizer.json, whose weights are drawn
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
bin=${FOVEA_PROGRAM_BIN:-}
if [ -n "$bin" ]; then
  part attention-tests 60 env OMP_NUM_THREADS=4 "$bin/attention_test" --gtest_filter='Device*'
  part model-tests 90 env OMP_NUM_THREADS=4 "$bin/nn_test" --gtest_filter='DeviceDecoder*:ModelDevice*'
  part draw-tests 30 env OMP_NUM_THREADS=4 "$bin/infer_test" --gtest_filter='*DeviceSampling*'
  part systems 55 "$python" benchmarks/train_systems.py --device cuda --worker "$bin/train_step_worker" --kind "$card" --rounds 5
  part step 45 "$python" benchmarks/train_step.py --device cuda --python "$(command -v "$python")" --kind "$card" \
    --worker "$bin/train_step_worker" --models 30m,124m --dtypes bfloat16 --pairs 9 --budget 8 --no-memory
  if [ -n "${FOVEA_MODEL:-}" ]; then
    part decode 150 "$python" benchmarks/gpu_decode.py "$FOVEA_MODEL" --random 0 --program "$bin/fovea" --focus 16384 \
      --output "$folder/gpu-decode-$card.json"
  fi
fi

for file in gpu gpu-mixing gpu-decode; do
  [ ! -f "$folder/$file-$card.json" ] || cp "$folder/$file-$card.json" benchmarks/results/
done
for name in mixing check memcheck racecheck rows attention-tests model-tests draw-tests systems step decode; do
  [ ! -f "$folder/$name.log" ] || { echo "== $name"; tail -n 60 "$folder/$name.log"; }
done
[ ${#failed[@]} -eq 0 ] || { say "failed: ${failed[*]}"; exit 1; }
say "all parts passed"
