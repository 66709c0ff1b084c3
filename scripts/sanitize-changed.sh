#!/usr/bin/env bash
# sanitize-changed.sh [JOBS]: tests of the kernels and parsers under the address and undefined-behaviour sanitizers,
# unless these very sources passed before on this machine (the cache folder remembers 50 of them).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-common.sh
jobs=${1:-$(scripts/jobs.sh)}

# Layers without tensors: the kernels, and all that reads text, recipes, tokenizers and data. The readers of weight
# files run under the same sanitizers as fuzz targets (tests/fuzz).
layers=(base config kernels text data)
programs=("${layers[@]/%/_test}")

hash=$({
  find "${layers[@]/#/fovea/}" "${layers[@]/#/tests/}" tests/support tests/golden cmake CMakeLists.txt CMakePresets.json \
    fovea/CMakeLists.txt tests/CMakeLists.txt scripts/sanitize-changed.sh -type f -print0 | sort -z | xargs -0 sha256sum
  c++ --version
  grep -m 1 '^flags' /proc/cpuinfo || true # other instructions, other kernels
} | sha256sum | cut -c 1-32)
passed=$FOVEA_CACHE/sanitized
if [ -f "$passed" ] && grep -q "^$hash$" "$passed"; then
  echo "[sanitize] unchanged since it passed: ${programs[*]}"
  exit 0
fi

scripts/build.sh sanitize "$jobs" "${programs[@]}"
scripts/run-tests.sh sanitize "$jobs" -R "^($(IFS='|'; echo "${layers[*]}"))(\.[0-9]+)?\$"
mkdir -p "$FOVEA_CACHE"
{ tail -n 49 "$passed" 2> /dev/null || true; echo "$hash"; } > "$passed.new"
mv "$passed.new" "$passed"
