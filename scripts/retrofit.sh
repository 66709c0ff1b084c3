#!/usr/bin/env bash
# make retrofit: Focus on a real pretrained model, a table of what it keeps and costs, two pages with pictures.
#
# scripts/retrofit.sh [further arguments of fovea retrofit]
#
# FOVEA_TEXT is the text (torch's Python sources), FOVEA_MINUTES how long it trains (4).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
model="${FOVEA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fovea}/models/SmolLM2-135M-Instruct"
out=runs/retrofit
build/bin/fovea retrofit "$model" --with focus --text "${FOVEA_TEXT:-torch-python}" --out "$out" \
  --minutes "${FOVEA_MINUTES:-4}" --tokens 4096 --top-k 2 "$@"
build/bin/fovea inspect "$model" --adapter "$out/adapter" --hard --quiet --out "$out/inspect" \
  --text "The capital of France is Paris. The capital of Italy is Rome. What is the capital of France? The capital of France is" > /dev/null
echo "groups:  $out/inspect (open the page in a browser)"
