#!/usr/bin/env bash
# Installs the wheels of build/dist into an empty environment and runs them: the package, the program, a small comparison.
# The environment has the torch of `make python-peers`; with --download it has nothing, and pip fetches what the wheels ask for.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/setup-common.sh"
cd "$here/.."

wheels=(build/dist/fovea-*.whl build/dist/fovea_cli-*.whl)
[ -f "${wheels[1]}" ] || die "no wheel of the program in build/dist" "make wheel"
folder=$(mktemp -d "${TMPDIR:-/tmp}/fovea-wheels.XXXXXX")
trap 'rm -rf "$folder"' EXIT
make_venv "$folder/venv"
if [ "${1:-}" = --download ]; then
  pip_install "$folder/venv" "${wheels[@]}"
else
  pip_install "$folder/venv" --no-index --no-deps "${wheels[@]}"
  "$FOVEA_CACHE/peers-$(cat scripts/torch-version.txt)/bin/python" -c 'import site, sys, torch
print(*(p for p in sys.path if p.endswith("site-packages")), sep="\n")' > "$folder/venv/lib/$(ls "$folder/venv/lib")/site-packages/torch.pth"
fi

cd "$folder" # no file of the repository is beside
unset PYTHONPATH LD_LIBRARY_PATH
python=venv/bin/python
"$python" -c 'import fovea, torch
x = torch.randn(1, 2, 9, 16)
assert torch.allclose(fovea.attention(x, x, x), torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True), atol=1e-5)'
venv/bin/fovea --version
venv/bin/fovea demo train.steps=4 train.evaluation_interval=4 train.evaluation_tokens=1024 "compare.seeds=[0, 1]" > demo.log 2>&1 ||
  { cat demo.log && exit 1; }
[ -f runs/demo/report.html ] || die "the demo of the installed program wrote no report"
venv/bin/fovea reproduce --help > /dev/null
say "the wheels run in an empty environment: fovea demo wrote a report"
