#!/usr/bin/env bash
# make bench: the benchmark of the training step against PyTorch; arguments go to it (docs/benchmarks.md).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 benchmarks/train_step.py "$@"
