#!/usr/bin/env bash
# test-aarch64-program.sh [JOBS]: the whole program for AArch64, cross-compiled, run by qemu and compared with this machine's
# program: the text of a real model (scripts/fetch-model.sh) and the loss of a short training run. qemu's speed says nothing.
#
# Libraries for AArch64 (40 MB) and torch's wheel for it (420 MB) are downloaded into the cache folder; nothing is installed
# but the cross compiler and qemu (aarch64-packages.txt).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
here=scripts
source scripts/setup-common.sh
source scripts/setup-packages.sh
jobs=${1:-$(scripts/jobs.sh)}

package_list=scripts/aarch64-packages.txt
install_missing_packages
emulator=$(command -v qemu-aarch64 qemu-aarch64-static | head -n 1 || true)
[ -z "$(missing_packages)" ] && [ -n "$emulator" ] ||
  die "packages of $package_list are missing: $(missing_packages | tr '\n' ' ')" "apt-get install g++-12-aarch64-linux-gnu qemu-user"

version=$(cat scripts/torch-version.txt)
mapfile -t wheels < <(echo "torch==$version"; grep -v '^#' scripts/cuda-wheels.txt)
mapfile -t libraries < <(sed -n '/^# libraries of the program/,/^$/ s/^\([a-z0-9.+-]*\).*/\1/p' scripts/debian-packages.txt | grep .)
export FOVEA_AARCH64_ROOT=$FOVEA_CACHE/aarch64/root
site=$FOVEA_CACHE/aarch64/site-$version
export FOVEA_AARCH64_TORCH=$site/torch

# fetch_libraries FOLDER: the packages and what they need, unpacked; apt keeps its state in the folder and needs no root.
fetch_libraries() {
  local apt_folder=$1.apt package
  rm -rf "$1" "$apt_folder"
  mkdir -p "$1" "$apt_folder"/{state/lists/partial,cache/archives/partial}
  touch "$apt_folder/state/status"
  local apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State=$apt_folder/state"
    -o "Dir::State::status=$apt_folder/state/status" -o "Dir::Cache=$apt_folder/cache" -o APT::Sandbox::User= -o Debug::NoLocking=1)
  { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends --download-only "${libraries[@]}"; } \
    > "$apt_folder/log" 2>&1 || { tail -n 5 "$apt_folder/log" >&2; die "apt could not download the libraries for AArch64 (see above)"; }
  for package in "$apt_folder"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$1"; done
  rm -rf "$apt_folder"
}

take_lock "$FOVEA_CACHE/aarch64"
if [ "$(cat "$FOVEA_AARCH64_ROOT/.complete" 2> /dev/null)" != "${libraries[*]}" ]; then
  say "libraries for AArch64 (40 MB) into $FOVEA_AARCH64_ROOT"
  need_space "$FOVEA_CACHE" 1000
  fetch_libraries "$FOVEA_AARCH64_ROOT"
  echo "${libraries[*]}" > "$FOVEA_AARCH64_ROOT/.complete"
fi
if [ "$(cat "$site/.complete" 2> /dev/null)" != "${wheels[*]}" ]; then
  say "torch $version for AArch64 (420 MB to download) into $site"
  need_space "$FOVEA_CACHE" 2500
  rm -rf "$site"
  platforms=()
  for glibc in 2_28 2_27 2_25 2_17; do platforms+=(--platform "manylinux_${glibc}_aarch64"); done
  pip_install "$FOVEA_CACHE/venv-$version" --no-deps --only-binary=:all: "${platforms[@]}" --platform manylinux2014_aarch64 \
    --target "$site" "${wheels[@]}"
  echo "${wheels[*]}" > "$site/.complete"
fi
exec 9>&- # the lock: what follows is in this clone's folders

scripts/build.sh release "$jobs" fovea
scripts/build.sh aarch64-program "$jobs" fovea
scripts/fetch-model.sh

model=$FOVEA_CACHE/models/SmolLM2-135M-Instruct
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here_program=(build/bin/fovea)
arm_program=("$emulator" -L "$FOVEA_AARCH64_ROOT" build/aarch64-program/bin/fovea)
"${arm_program[@]}" info | sed 's/^/[aarch64] /'

# same_text NAME OPTIONS...: both programs write the same continuation, and not an empty one.
failed=0
same_text() {
  local name=$1
  shift
  "${here_program[@]}" "${likeliest[@]}" --quiet "$@" > "$work/here"
  "${arm_program[@]}" "${likeliest[@]}" --quiet "$@" > "$work/arm"
  if grep -q '[a-z]' "$work/here" && cmp -s "$work/here" "$work/arm"; then
    echo "[aarch64] $name: the same text: $(tr '\n' ' ' < "$work/arm" | cut -c 1-100)"
  else
    echo "[aarch64] $name: FAILED: this machine wrote: $(cat "$work/here")"
    echo "[aarch64] $name: FAILED: AArch64 wrote:      $(cat "$work/arm")"
    failed=1
  fi
}
likeliest=(generate "$model" "The capital of France is Paris. The capital of Italy is" --temperature 0 --max-tokens 8)
same_text "SmolLM2 in float32" --dtype float32 --weights f32
same_text "SmolLM2 in bfloat16" --dtype bfloat16 --weights bf16
same_text "SmolLM2, the file's 4 and 8 bits" --dtype float32 --weights stored
same_text "SmolLM2, a window of 8 tokens" --dtype float32 --attention mask.window=8

train=(train recipes/my-text.yaml --quiet data.sources.0.path=docs/building.md model.layers=2 model.width=64 model.heads=2
  model.context=64 train.steps=5 train.batch_rows=4 train.dtype=float32)
"${here_program[@]}" "${train[@]}" "run_folder=$work/run-here" > /dev/null
"${arm_program[@]}" "${train[@]}" "run_folder=$work/run-arm" > /dev/null
python3 - "$work"/run-{here,arm}/metrics.jsonl << 'PYTHON' || failed=1
import json, sys

here, arm = ([json.loads(line)["loss/out"] for line in open(path) if '"loss/out"' in line] for path in sys.argv[1:])
same = here and len(here) == len(arm) and all(abs(a - b) <= 1e-5 * b for a, b in zip(here, arm))
print(f"[aarch64] training, loss at its end: {here[-1]:.6f} here, {arm[-1]:.6f} on AArch64" + ("" if same else ": FAILED"))
sys.exit(not same)
PYTHON
[ "$failed" -eq 0 ] || exit 1
echo "[aarch64] the program: passed"
