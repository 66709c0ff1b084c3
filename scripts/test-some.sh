#!/usr/bin/env bash
# test-some.sh JOBS NAME: builds and runs one test program (NAME is a layer: attention) or the tests whose names match NAME
# ('Tokenizer*', '*Causality*'). test-some.sh JOBS: the programs of the layers that differ from the last commit.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$1
name=${2:-}
filter='*'

layers_of_files() { sed -nE 's,^(fovea|tests)/([^/]+)/.*,\2,p; s,^cli/.*,cli,p' | sort -u; }

if [ -z "$name" ]; then
  mapfile -t layers < <({ git diff --name-only HEAD; git ls-files --others --exclude-standard; } | layers_of_files)
elif [ -d "tests/$name" ]; then
  layers=("$name")
else
  filter=$name
  # The longest piece without a wildcard finds the sources; "Suite.Name" stands there as "Suite, Name".
  piece=$(tr '*.?:/' '\n' <<< "$name" | awk 'length > length(longest) { longest = $0 } END { print longest }')
  mapfile -t layers < <({ grep -rlE --include='*.cpp' "^TEST.*$piece" tests || true; } | layers_of_files)
fi

programs=()
for layer in "${layers[@]}"; do
  if [ "$layer" = cli ] || { [ -d "fovea/$layer" ] && compgen -G "tests/$layer/*.cpp" > /dev/null; }; then
    programs+=("${layer}_test")
  fi
done
if [ ${#programs[@]} -eq 0 ]; then
  [ -n "$name" ] || { echo "[test] no layer differs from the last commit"; exit 0; }
  echo "[test] expected a layer ($(ls -d fovea/*/ | xargs -n 1 basename | paste -sd ' ') cli) or the name of a test; got '$name'" >&2
  exit 2
fi

scripts/build.sh release "$jobs" "${programs[@]}"
for program in "${programs[@]}"; do
  echo "[test] $program"
  "build/bin/$program" --gtest_brief=1 --gtest_filter="$filter"
done
