#!/usr/bin/env bash
# The tests of the Python package, where `make wheel` has built it; else one line says why they did not run.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/setup-common.sh"
cd "$here/.."

python=$FOVEA_CACHE/peers-$(cat scripts/torch-version.txt)/bin/python
if [ ! -x "$python" ] || [ ! -f build/python-package/fovea/libfovea_kernels.so ]; then
  echo "[python] the tests of the Python package did not run: it is not built (make python-peers wheel)"
  exit 0
fi
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/build/python-package "$python" -m pytest -q -p no:cacheprovider python/tests "$@"
