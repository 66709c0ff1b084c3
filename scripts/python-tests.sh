#!/usr/bin/env bash
# python-tests.sh [PYTEST ARGUMENTS...]: the tests of the Python package, by the Python of `make python-peers`. Where
# that Python or a package is missing, one line says that the tests did not run and why; nothing is downloaded.
# The wheel is built before: its kernels come from ccache after `make build`.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/setup-common.sh"
cd "$here/.."

python=$FOVEA_CACHE/peers-$(cat scripts/torch-version.txt)/bin/python
did_not_run() {
  echo "[python] the tests of the Python package did not run: $1"
  exit 0
}
[ -x "$python" ] || did_not_run "no PyTorch for Python (make python-peers)"
missing=$("$python" -c 'import importlib.util as u
print(*(n for n in ("torch", "transformers", "pytest", "scikit_build_core", "auditwheel") if u.find_spec(n) is None))') ||
  did_not_run "$python does not start (make python-peers)"
[ -z "$missing" ] || did_not_run "its Python has no ${missing// /, no } (make python-peers)"
PIP_NO_INDEX=1 scripts/wheel.sh

# SmolLM2 as transformers loads it, where `make model` has fetched it.
model=$FOVEA_CACHE/models/SmolLM2-135M-Instruct
export FOVEA_SMOLLM=$PWD/build/python-smollm
if [ ! -f "$FOVEA_SMOLLM/config.json" ] && [ -d "$model" ] && [ -x build/bin/fovea ]; then
  build/bin/fovea export "$model" "$FOVEA_SMOLLM" --quiet > /dev/null
fi

# The wheels in an empty environment, where the program is built.
[ ! -x build/bin/fovea ] || [ $# -gt 0 ] || PIP_NO_INDEX=1 scripts/wheel-install.sh

# One thread, as in run-tests.sh; tests about threads set their number.
OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/build/python-package "$python" -m pytest -q -rs \
  -p no:cacheprovider python/tests "$@"
