#!/usr/bin/env bash
# run-tests.sh PRESET [JOBS] [CTEST ARGUMENTS...]: ctest on a built preset. On a terminal one moving line, else one a test.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
jobs=${2:-$(scripts/jobs.sh)}
shift $(($# < 2 ? $# : 2))
case $preset in release) folder=build ;; *) folder=build/$preset ;; esac

# The tests run side by side, so each has one thread; those about threads set their own number.
export OMP_NUM_THREADS=1
# libtorch keeps registries for the life of the process, which the leak checker would report. What cannot be allocated is
# an error of the program, which tests expect, and not of the sanitizer.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:${ASAN_OPTIONS:-} UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:${UBSAN_OPTIONS:-}
progress=
[ ! -t 1 ] || progress=--progress
status=0
ctest --test-dir "$folder" --output-on-failure --no-tests=error -j "$jobs" $progress "$@" || status=$?
# ctest counts programs; the programs count tests. One that crashed or was not built is at least one failure.
failed=$folder/Testing/Temporary/LastTestsFailed.log
programs=0
[ "$status" -eq 0 ] || [ ! -f "$failed" ] || programs=$(wc -l < "$failed")
awk -v programs="$programs" '
  / tests? from .* ran\./ { total += $2 }
  /^\[  PASSED  \]/ { passed += $4 }
  /^[0-9]+ passed, [0-9]+ failed$/ { total += $1 + $3; passed += $1 }
  END { failed = total - passed; printf "tests: %d passed, %d failed\n", passed, (failed > programs ? failed : programs) }
  ' "$folder/Testing/Temporary/LastTest.log"
exit $status
