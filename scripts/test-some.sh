#!/usr/bin/env bash
# test-some.sh JOBS NAME: builds and runs one test program (NAME is a layer: attention) or the tests whose names match NAME
# ('Tokenizer*', '*Causality*'). test-some.sh JOBS: the tests of the files that differ from the last commit, for a minute
# at most (QUICK_SECONDS); it names what it left out.
#
# The tests of a source are those of the test file of its name, or of the test files of its layer that include its header.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$1
name=${2:-}

layers_of_files() { sed -nE 's,^(fovea|tests)/([^/]+)/.*,\2,p; s,^cli/.*,cli,p' | sort -u; }

# The test files that speak of one changed file; nothing where there are none.
tests_of_file() {
  local file=$1 layer stem
  case $file in
    tests/*_test.cpp) [ ! -f "$file" ] || echo "$file"; return ;;
    fovea/*.h | fovea/*.cpp) ;;
    *) return ;;
  esac
  layer=$(layers_of_files <<< "$file")
  stem=$(basename "${file%.*}")
  if [ -f "tests/$layer/${stem}_test.cpp" ]; then
    echo "tests/$layer/${stem}_test.cpp"
  else
    grep -lF "\"${file%.*}.h\"" "tests/$layer"/*_test.cpp 2> /dev/null || echo "[test] $file has no test of its name" >&2
  fi
}

# gtest's filter for all suites of some test files.
suites_of_files() {
  sed -nE 's/^(TYPED_)?TEST(_F|_P)?\(([A-Za-z0-9_]+),.*/\3/p' "$@" | sort -u | sed 's,.*,&.*:*/&.*:&/*,' | paste -sd:
}

program_of_layer() {
  if [ "$1" = cli ] || { [ -d "fovea/$1" ] && compgen -G "tests/$1/*.cpp" > /dev/null; }; then echo "$1_test"; fi
}

if [ -z "$name" ]; then
  mapfile -t changed < <({ git diff --name-only HEAD; git ls-files --others --exclude-standard; } | sort -u)
  mapfile -t files < <(for file in "${changed[@]}"; do tests_of_file "$file"; done | sort -u)
  [ ${#files[@]} -gt 0 ] || { echo "[test] no test speaks of what differs from the last commit"; exit 0; }
  mapfile -t layers < <(printf '%s\n' "${files[@]}" | layers_of_files)
  programs=()
  for layer in "${layers[@]}"; do programs+=("$(program_of_layer "$layer")"); done
  scripts/build.sh release "$jobs" "${programs[@]}"
  end=$((SECONDS + ${QUICK_SECONDS:-60}))
  for layer in "${layers[@]}"; do
    mapfile -t own < <(printf '%s\n' "${files[@]}" | grep "^tests/$layer/")
    if [ "$SECONDS" -ge "$end" ]; then
      echo "[test] left out, the minute is over: make test T=$layer (${own[*]})"
      continue
    fi
    echo "[test] ${layer}_test: ${own[*]}"
    status=0
    timeout $((end - SECONDS)) "build/bin/${layer}_test" --gtest_brief=1 --gtest_filter="$(suites_of_files "${own[@]}")" || status=$?
    [ "$status" -ne 124 ] || { echo "[test] cut off, the minute is over: make test T=$layer"; continue; }
    [ "$status" -eq 0 ] || exit "$status"
  done
  exit 0
fi

filter='*'
if [ -d "tests/$name" ]; then
  layers=("$name")
else
  filter=$name
  # The longest piece without a wildcard finds the sources; "Suite.Name" stands there as "Suite, Name".
  piece=$(tr '*.?:/' '\n' <<< "$name" | awk 'length > length(longest) { longest = $0 } END { print longest }')
  mapfile -t layers < <({ grep -rlE --include='*.cpp' "^TEST.*$piece" tests || true; } | layers_of_files)
fi
programs=()
for layer in "${layers[@]}"; do programs+=($(program_of_layer "$layer")); done
if [ ${#programs[@]} -eq 0 ]; then
  echo "[test] expected a layer ($(ls -d fovea/*/ | xargs -n 1 basename | paste -sd ' ') cli) or the name of a test; got '$name'" >&2
  exit 2
fi
scripts/build.sh release "$jobs" "${programs[@]}"
for program in "${programs[@]}"; do
  echo "[test] $program"
  "build/bin/$program" --gtest_brief=1 --gtest_filter="$filter"
done
