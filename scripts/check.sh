#!/usr/bin/env bash
# make check: every check that is not a test. All run, also after a failure; exits 1 if one failed.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
cd "$(dirname "$0")/.."

checks=(
  "scripts/check-layers.py"         # include order, no torch below it, no printing in the library, file sizes
  "scripts/check-mechanisms.py"     # a mechanism is named in its own files and in the lists alone
  "scripts/check-format.sh"         # clang-format
  "scripts/check-english.py"        # sentences of the headers: 30 words at most, none begins with What, Of, Such
  "scripts/check-cuda-resources.py" # registers and spills of the CUDA kernels, where nvcc built some
  "scripts/check-spec-coverage.py"  # every test named in tests/spec_coverage.json exists
  "scripts/check-docs.py"           # snippets run, links lead somewhere
  "scripts/docs.sh"                 # the site: comments of the headers, links, every page opened in Chromium
  "scripts/lint.py"                 # clang-tidy
)
passed=0
failed=()
for check in "${checks[@]}"; do
  start=$SECONDS
  if "$check" < /dev/null; then
    passed=$((passed + 1))
  else
    failed+=("$check")
    echo "[check] FAILED: $check ($((SECONDS - start)) s)"
  fi
done
[ ${#failed[@]} -eq 0 ] || printf '[check] failed: %s\n' "${failed[@]}"
echo "checks: $passed passed, ${#failed[@]} failed"
[ ${#failed[@]} -eq 0 ]
