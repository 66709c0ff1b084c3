#!/usr/bin/env bash
# build.sh PRESET [JOBS] [TARGETS...]: configures the preset where that is new, builds, and says how long it took.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
jobs=${2:-$(scripts/jobs.sh)}
shift $(($# < 2 ? $# : 2))
case $preset in release) folder=build ;; *) folder=build/$preset ;; esac

# The program alone has the kernels that this machine runs, unless FOVEA_KERNELS=all; tests need those of all instruction sets.
kernels=all
[ "$preset $*" != "release fovea" ] || kernels=${FOVEA_KERNELS:-native}
if [ ! -f "$folder/build.ninja" ]; then
  echo "[build] configuring $preset in $folder/ (the first build takes minutes; later ones seconds)"
elif [ "$kernels" = native ] || ! grep -q '^FOVEA_KERNELS:STRING=native$' "$folder/CMakeCache.txt"; then
  kernels=""
fi
if [ -n "$kernels" ]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  cmake --preset "$preset" -DFOVEA_KERNELS=$kernels > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi

# Ninja's output with its line a step made one line every 10 s; what compilers and failures print goes through.
one_line_every_10s() {
  local line="" piece status=0 steps="" next=10
  while [ "$status" -eq 0 ] || [ "$status" -gt 128 ]; do # above 128: a second without input
    status=0
    IFS= read -r -t 1 piece || status=$?
    line+=$piece
    if [ "$status" -eq 0 ]; then
      if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\  ]]; then
        steps="${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}"
      elif [[ $line != "ninja: Entering directory"* && $line != "ninja: no work to do." ]]; then
        printf '%s\n' "$line"
      fi
      line=""
    fi
    if [ "$SECONDS" -ge "$next" ] && [ -n "$steps" ]; then
      echo "[build] $steps, $((SECONDS / 60)) min $((SECONDS % 60)) s"
      next=$((SECONDS + 10))
    fi
  done
  [ -z "$line" ] || printf '%s\n' "$line"
}

if [ -t 1 ]; then
  ninja -C "$folder" -j "$jobs" "$@"
else
  NINJA_STATUS='[%f/%t] ' ninja -C "$folder" -j "$jobs" "$@" 2>&1 | one_line_every_10s
fi
[ "$SECONDS" -lt 3 ] || echo "[build] $preset done in ${SECONDS} s"
