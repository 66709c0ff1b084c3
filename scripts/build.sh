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

if [ ! -f "$folder/build.ninja" ]; then
  echo "[build] configuring $preset in $folder/ (the first build takes minutes; later ones seconds)"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  cmake --preset "$preset" > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
# Quiet where nobody looks: the commands of what failed are printed in any case.
quiet=--quiet
[ ! -t 1 ] || quiet=
ninja -C "$folder" -j "$jobs" $quiet "$@"
[ "$SECONDS" -lt 3 ] || echo "[build] $preset done in ${SECONDS} s"
