#!/usr/bin/env bash
# check-doxygen.sh: the comments of the public headers fit what they describe (scripts/Doxyfile). The pages are left in
# build/doxygen/html.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v doxygen > /dev/null; then
  echo "[doxygen] not installed: the headers' comments were not checked"
  exit 0
fi
mkdir -p build
if ! found=$(doxygen scripts/Doxyfile 2>&1); then
  echo "$found" | sort -u
  echo "[doxygen] $(echo "$found" | sort -u | wc -l) problems"
  exit 1
fi
echo "[doxygen] $(git ls-files 'fovea/**/*.h' | wc -l) headers, 0 problems"
