#!/usr/bin/env bash
# soak.sh [serve] [PROGRAM]: an hour of random kills, flipped bits and recipes, or of mixed load on `fovea serve`
# (SOAK_SECONDS=3600, SOAK_SEED to repeat a session).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
script=hostile/soak.py
if [ "${1:-}" = serve ]; then
  script=serve/soak.py
  shift
fi
program=$(realpath "${1:-$(dirname "$0")/../build/bin/fovea}")
exec python3 "$(dirname "$0")/../tests/$script" "$program"
