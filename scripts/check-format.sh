#!/usr/bin/env bash
# check-format.sh [--fix]: clang-format 14 (.clang-format) over every C++ file that git knows.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

formatter=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$formatter" ] || ! "$formatter" --version | grep -q 'version 14\.'; then
  # Other versions break lines differently; what is right is what version 14 writes.
  echo "[format] clang-format 14 is not installed: run 'make setup', or install the package clang-format-14" >&2
  exit 1
fi
mapfile -d '' files < <(git ls-files -z --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh')
if [ "${1:-}" = --fix ]; then
  "$formatter" -i "${files[@]}"
  exit 0
fi
unformatted=()
for file in "${files[@]}"; do
  [ -f "$file" ] || continue
  "$formatter" --dry-run --Werror "$file" > /dev/null 2>&1 || unformatted+=("$file")
done
if [ ${#unformatted[@]} -gt 0 ]; then
  printf '[format] not formatted: %s\n' "${unformatted[@]}"
  echo "[format] run: make format"
  exit 1
fi
echo "[format] ${#files[@]} files are formatted"
