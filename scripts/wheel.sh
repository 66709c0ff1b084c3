#!/usr/bin/env bash
# make wheel: the wheels of python/ and python/cli into build/dist, and the first unpacked into build/python-package for the
# tests. The second carries build/bin/fovea; without that program it is not made.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/setup-common.sh"
cd "$here/.."

python=$FOVEA_CACHE/peers-$(cat scripts/torch-version.txt)/bin/python
[ -x "$python" ] || die "the wheel is built against PyTorch for Python" "make python-peers"
"$python" -c 'import auditwheel, scikit_build_core' 2> /dev/null || die "$python has no scikit-build-core, or no auditwheel" "make python-peers"
torch=$("$python" -c 'import torch; print(torch.__path__[0])' 2> /dev/null)
plain=$(mktemp -d "${TMPDIR:-/tmp}/fovea-wheel.XXXXXX")
trap 'rm -rf "$plain"' EXIT
mkdir -p build/dist

# make_wheel FOLDER NAME SETTINGS...: build/dist/NAME-*.whl, whose tag tells pip the oldest C library that it runs on.
# torch, which is installed beside it, stays outside.
make_wheel() {
  local folder=$1 name=$2 log=$plain/log
  shift 2
  CMAKE_GENERATOR=Ninja "$python" -m pip wheel --quiet --no-deps --no-build-isolation --disable-pip-version-check "$@" -w "$plain" "$folder"
  rm -f "build/dist/$name"-*.whl
  PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --only-plat --exclude 'libtorch*' --exclude 'libc10*' \
    --exclude 'libgomp*' -w build/dist "$plain/$name"-*.whl > "$log" 2>&1 || { cat "$log" >&2 && die "auditwheel refuses the wheel $name"; }
}

# The CUDA kernels that the whole build has: all forms after `make gpu`, else a few; none without nvcc.
units=$(sed -n 's/^FOVEA_CUDA_UNITS:STRING=//p' build/CMakeCache.txt 2> /dev/null || true)
# The compiler by the name of the whole build: by another one, ccache does not know the kernels.
CXX=${CXX:-c++} CMAKE_BUILD_PARALLEL_LEVEL=${1:-$(scripts/jobs.sh)} make_wheel ./python fovea \
  --config-settings=cmake.define.FOVEA_TORCH_DIR="$torch" --config-settings=cmake.define.FOVEA_CUDA_UNITS="${units:-few}"
rm -rf build/python-package
"$python" -m pip install --quiet --no-deps --disable-pip-version-check --target build/python-package build/dist/fovea-*.whl
say "$(ls build/dist/fovea-*.whl): pip install it beside torch >= 2.10"
[ -x build/bin/fovea ] || exit 0
make_wheel ./python/cli fovea_cli
say "$(ls build/dist/fovea_cli-*.whl): the program; pip install it beside torch $(cut -d. -f1,2 scripts/torch-version.txt)"
