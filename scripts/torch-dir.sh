#!/usr/bin/env bash
# Prints the `torch` folder of the pinned wheel in the cache (FOVEA_CACHE, default the user's cache folder).
set -eu
cache=${FOVEA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fovea}
version=$(cat "$(dirname "$0")/torch-version.txt")
for dir in "$cache/venv-$version"/lib/python3*/site-packages/torch; do
  [ -d "$dir" ] && echo "$dir" && exit 0
done
exit 0
