#!/usr/bin/env bash
# test-aarch64.sh [JOBS]: the kernels' tests on AArch64 (NEON with and without BF16 and I8MM, and portable kernels),
# cross-compiled and run by qemu, unless these very sources passed before on this machine (the cache folder remembers 50 of
# them). The tests run JOBS at a time. qemu's speed says nothing.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
here=scripts
source scripts/setup-common.sh
jobs=${1:-$(scripts/jobs.sh)}

hash=$({
  find fovea/base fovea/kernels tests/kernels tests/support cmake CMakeLists.txt CMakePresets.json fovea/CMakeLists.txt \
    tests/CMakeLists.txt scripts/test-aarch64.sh -type f -print0 | sort -z | xargs -0 sha256sum
} | sha256sum | cut -c 1-32)
passed=$FOVEA_CACHE/passed-aarch64
if [ -f "$passed" ] && grep -q "^$hash$" "$passed"; then
  echo "[aarch64] unchanged since it passed: kernels_test"
  exit 0
fi

source scripts/setup-packages.sh
package_list=scripts/aarch64-packages.txt
install_missing_packages
emulator=$(command -v qemu-aarch64 qemu-aarch64-static | head -n 1 || true)
if [ -n "$(missing_packages)" ] || [ -z "$emulator" ]; then
  echo "[aarch64] not run, packages of $package_list are missing: $(missing_packages | tr '\n' ' ')"
  exit 0
fi

scripts/build.sh aarch64 "$jobs" kernels_test
# Random problems are few: qemu takes ten times as long as a processor. Threads that wait leave it to others at once.
export OMP_NUM_THREADS=1 GOMP_SPINCOUNT=1 FOVEA_RANDOM_CASES=${FOVEA_RANDOM_CASES:-20}

# A test that passed is remembered by the sources' hash, so that an interrupted run goes on where it was. The tests that run
# others on every instruction set are left out: here each runs on each.
export passed_tests=$FOVEA_CACHE/passed-aarch64-$hash
run_test() {
  local isa=$1 test=$2 start=$SECONDS log count
  log=$(mktemp)
  if FOVEA_ISA=$isa $emulated --gtest_brief=1 --gtest_filter="$test" > "$log" 2>&1 &&
    grep -q '^\[  PASSED  \] 1 test' "$log"; then
    echo "$isa $test" >> "$passed_tests"
    count=$(wc -l < "$passed_tests")
    [ $((SECONDS - start)) -lt 60 ] || echo "[aarch64] $isa $test: $((SECONDS - start)) s"
    [ $((count % 25)) -ne 0 ] || echo "[aarch64] $count of $all tests passed"
    rm -f "$log"
  else
    echo "[aarch64] $isa $test FAILED"
    cat "$log"
    rm -f "$log"
    return 1
  fi
}
export -f run_test
mkdir -p "$FOVEA_CACHE"
find "$FOVEA_CACHE" -maxdepth 1 -name 'passed-aarch64-*' ! -name "passed-aarch64-$hash" -delete # of other sources
touch "$passed_tests"
export emulated="$emulator -L /usr/aarch64-linux-gnu build/aarch64/bin/kernels_test" all
tests=$($emulated --gtest_list_tests --gtest_filter='-ForcedIsa*' |
  awk '/^[^ ].*\.( |$)/ { suite = $1 } /^  / { print "neon", suite $1; print "neon_bf16", suite $1; print "scalar", suite $1 }' |
  sort)
all=$(wc -l <<< "$tests")
comm -23 <(echo "$tests") <(sort "$passed_tests") | xargs -r -P "$jobs" -L 1 bash -c 'run_test "$@"' run_test
echo "[aarch64] $all tests passed"
{ tail -n 49 "$passed" 2> /dev/null || true; echo "$hash"; } > "$passed.new"
mv "$passed.new" "$passed"
rm -f "$passed_tests"
