#!/usr/bin/env bash
# make bench: runs every benchmark program of build/bin one after the other; arguments go to each of them.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
shopt -s nullglob
programs=(build/bin/*_bench)
if [ ${#programs[@]} -eq 0 ]; then
  echo "[bench] no benchmark program in build/bin: run 'make build'" >&2
  exit 1
fi
for program in "${programs[@]}"; do
  echo "[bench] $program"
  "$program" "$@"
done
