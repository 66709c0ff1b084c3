#!/usr/bin/env bash
# python-tests.sh [PYTEST ARGUMENTS...]: the tests of the Python package, by the Python of `make python-peers`; without
# it, one line says why they did not run. The wheel is built before: its kernels come from ccache after `make build`.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/setup-common.sh"
cd "$here/.."

python=$FOVEA_CACHE/peers-$(cat scripts/torch-version.txt)/bin/python
if [ ! -x "$python" ]; then
  echo "[python] the tests of the Python package did not run: no PyTorch for Python (make python-peers)"
  exit 0
fi
scripts/wheel.sh

# SmolLM2 as transformers loads it, where `make model` has fetched it.
model=$FOVEA_CACHE/models/SmolLM2-135M-Instruct
export FOVEA_SMOLLM=$PWD/build/python-smollm
if [ ! -f "$FOVEA_SMOLLM/config.json" ] && [ -d "$model" ] && [ -x build/bin/fovea ]; then
  build/bin/fovea export "$model" "$FOVEA_SMOLLM" --quiet > /dev/null
fi

# One thread, as in run-tests.sh; tests about threads set their number.
OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/build/python-package "$python" -m pytest -q -rs \
  -p no:cacheprovider python/tests "$@"
