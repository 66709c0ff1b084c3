#!/usr/bin/env bash
# soak.sh [PROGRAM]: an hour of random kills, flipped bits and recipes (SOAK_SECONDS=3600, SOAK_SEED to repeat a session).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
program=$(realpath "${1:-$(dirname "$0")/../build/bin/fovea}")
exec python3 "$(dirname "$0")/../tests/hostile/soak.py" "$program"
