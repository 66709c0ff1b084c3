#!/usr/bin/env bash
# make setup: Debian packages from debian-packages.txt, then the pinned torch wheel in a virtual environment in the cache folder.
#
# Safe to run again at any time: it does only what is missing (nothing: under a second), redoes what was interrupted, and
# a second setup beside it waits for the first. Exit codes: 0 done, 1 failed while running, 2 the user must do something
# first (the message says what).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/setup-common.sh"

source "$here/setup-packages.sh"
install_missing_packages

version=$(cat "$here/torch-version.txt")
mapfile -t wheels < <(echo "torch==$version"; grep -v '^#' "$here/cuda-wheels.txt")
venv=$FOVEA_CACHE/venv-$version
stamp=$venv/.complete

# The stamp holds the pins it stands for; the library is looked for too, should somebody have emptied the folder.
is_complete() {
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "${wheels[*]}" ] && [ -f "$("$here/torch-dir.sh")/lib/libtorch_cpu.so" ]
}
is_complete && exit 0

take_lock "$FOVEA_CACHE"
is_complete && exit 0  # another setup did it while this one waited

# Wheels that are all there, file by file, need no new download (an environment that some other hand made).
if [ -x "$venv/bin/python" ] && "$venv/bin/python" "$here/check-wheels.py" "${wheels[@]}" 2> /dev/null; then
  echo "${wheels[*]}" > "$stamp"
  exit 0
fi

say "torch $version (530 MB to download, 1.3 GB on disk) into $venv"
need_space "$FOVEA_CACHE" 2500
make_venv "$venv"
pip_install "$venv" --no-deps "${wheels[@]}"
"$venv/bin/python" "$here/check-wheels.py" "${wheels[@]}" || die "the installed wheels are damaged (see above)" \
  "rm -rf '$venv' && make setup"
echo "${wheels[*]}" > "$stamp"
say "done in ${SECONDS} s"
