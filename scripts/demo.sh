#!/usr/bin/env bash
# make demo: compares attention variants on torch's Python sources, or on the text that FOVEA_TEXT names.
#
# scripts/demo.sh [further overrides of fovea compare]
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
overrides=("$@")
quote="'"  # the value is YAML: any name stands between quotes
# The models continue the user's own text, and their attention is drawn on it.
[ -z "${FOVEA_TEXT:-}" ] ||
  overrides=("data.sources.0.path='${FOVEA_TEXT//$quote/$quote$quote}'" "compare.sample.prompt=''" "compare.map.text=''" "$@")
exec build/bin/fovea compare recipes/demo.yaml "${overrides[@]}"
