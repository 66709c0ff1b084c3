#!/usr/bin/env bash
# make docs: the documentation as a site with search and an API reference, in build/site. Every link is checked, and the
# pages are opened in Chromium where it is installed.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-common.sh

venv=$FOVEA_CACHE/docs-venv
wanted=$(cat scripts/site/requirements.txt)
if [ "$(cat "$venv/.complete" 2> /dev/null)" != "$wanted" ]; then
  take_lock "$FOVEA_CACHE"
  say "mkdocs-material (30 MB) into $venv"
  make_venv "$venv"
  pip_install "$venv" -r scripts/site/requirements.txt
  echo "$wanted" > "$venv/.complete"
fi

api=()
if command -v doxygen > /dev/null; then
  scripts/check-doxygen.sh
  api=(build/doxygen/html)
else
  echo "[docs] doxygen is not installed: the site has no API reference"
fi
"$venv/bin/python" scripts/site/stage.py build/site-source "${api[@]}"
"$venv/bin/mkdocs" build --quiet --strict --config-file build/site-source.yml
python3 scripts/site/open_pages.py build/site
echo "[docs] build/site is ready; to read it: python3 -m http.server --directory build/site 8000, then http://localhost:8000"
