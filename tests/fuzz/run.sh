#!/usr/bin/env bash
# run.sh CLANG BUILD_FOLDER TORCH_DIR LIBRARIES [SECONDS]: builds the fuzz targets and runs each for a fixed time, from its
# corpus. LIBRARIES is the folder of the program's libraries, "" to leave out the targets that need them.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
compiler=$1 build=$2 torch=$3 libraries=$4 seconds=${5:-10}
cmake -S "$here" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DFOVEA_TORCH_DIR="$torch" \
  -DFOVEA_LIBRARIES="$libraries" > /dev/null
cmake --build "$build"
# libtorch is not instrumented: containers that cross its border look overflown, and its registries leaked.
export ASAN_OPTIONS=detect_container_overflow=0:detect_leaks=0
for target in safetensors gguf tokenizer_json token_files chat_template serve_body ${libraries:+model_config gguf_model recipe task_file serve_head}; do
  found=$build/found-$target
  mkdir -p "$found"
  corpus=$here/corpus/$target
  [ "$target" != recipe ] || corpus=$here/../../recipes
  [ "$target" != task_file ] || corpus=$here/../../recipes/tasks
  # New inputs are kept in $found, so that the next run begins where this one ended; a crash is written there too.
  "$build/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -max_len=16384 -print_final_stats=1 \
    -artifact_prefix="$found/" "$found" "$corpus" 2>&1 | tail -n 25
done
