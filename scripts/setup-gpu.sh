#!/usr/bin/env bash
# make gpu: what torch's CUDA half needs (about 2.5 GB to download), beside the wheel of `make setup`. The NVIDIA driver
# (for CUDA 13: 580 or newer) is the machine's own.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/setup-common.sh"

version=$(cat "$here/torch-version.txt")
venv=$FOVEA_CACHE/venv-$version
loads() {
  "$venv/bin/python" - "$("$here/torch-dir.sh")/lib" <<'PYTHON'
import ctypes, sys
for name in ("libtorch_cpu.so", "libtorch_cuda.so"):
    try:
        ctypes.CDLL(f"{sys.argv[1]}/{name}", ctypes.RTLD_GLOBAL)
    except OSError as error:
        sys.exit(f"[setup] {error}")
PYTHON
}

if ! loads 2> /dev/null; then
  take_lock "$FOVEA_CACHE"
  say "torch's CUDA libraries (2.5 GB to download, 5 GB on disk) into $venv"
  need_space "$FOVEA_CACHE" 8000
  pip_install "$venv" "torch==$version"
  loads || die "torch's CUDA half cannot be loaded (see above)" "rm -rf '$venv' && make gpu"
fi
if command -v nvidia-smi > /dev/null && nvidia-smi > /dev/null 2>&1; then
  say "torch's CUDA half is there; $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)"
else
  say "torch's CUDA half is there; no NVIDIA driver answers, so everything goes on computing on the CPU"
fi
