# Shared by setup.sh and python-peers.sh (sourced): messages, lock, disk check, virtual environments.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0

export FOVEA_CACHE=${FOVEA_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set: set FOVEA_CACHE to a folder}/.cache}/fovea}

say() { echo "[setup] $*"; }

# die MESSAGE [COMMAND]: what is missing, and the command that mends it.
die() {
  echo "[setup] $1" >&2
  [ $# -lt 2 ] || echo "[setup] run: $2" >&2
  exit 2
}

# take_lock FOLDER: one setup at a time; the lock goes with this process, however it ends.
take_lock() {
  mkdir -p "$1" 2> /dev/null || die "cannot create the cache folder '$1'; choose another one" "FOVEA_CACHE=/some/folder make"
  { exec 9> "$1/.setup.lock"; } 2> /dev/null || die "cannot write to the cache folder '$1'; choose another one" \
    "FOVEA_CACHE=/some/folder make"
  command -v flock > /dev/null || die "the program 'flock' is missing" "apt-get install util-linux"
  if ! flock -n 9; then
    say "another setup is running; waiting for it"
    flock 9
  fi
}

# need_space FOLDER MEGABYTES
need_space() {
  local free
  free=$(df -Pm "$1" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$2" ] || die "$2 MB of disk are needed below '$1'; $free MB are free: free some, or choose another folder" \
    "FOVEA_CACHE=/some/larger/folder make"
}

# The Python that makes environments: FOVEA_PYTHON, the system's, or the first on the PATH, whichever can.
find_python() {
  local candidate
  for candidate in ${FOVEA_PYTHON:-/usr/bin/python3 python3}; do
    "$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2> /dev/null &&
      echo "$candidate" && return 0
  done
  die "no Python 3.10 to 3.14 with the modules venv and ensurepip${FOVEA_PYTHON:+ at FOVEA_PYTHON=$FOVEA_PYTHON}" \
    "apt-get install python3 python3-venv   (or: FOVEA_PYTHON=/path/to/python3 make setup)"
}

# make_venv FOLDER: a fresh one; what an interrupted setup left there goes.
make_venv() {
  local python
  python=$(find_python)
  rm -rf "$1"
  "$python" -m venv "$1" || die "'$python -m venv $1' failed (see above)" "apt-get install --reinstall python3-venv"
}

# pip_install VENV ARGUMENTS...: finished downloads stay in the cache folder until everything is installed, so an
# interrupted setup goes on from there.
pip_install() {
  local folder=$1
  shift
  mkdir -p "$FOVEA_CACHE/pip" "$FOVEA_CACHE/tmp"
  if ! TMPDIR=$FOVEA_CACHE/tmp PIP_CACHE_DIR=$FOVEA_CACHE/pip PIP_DISABLE_PIP_VERSION_CHECK=1 \
    "$folder/bin/python" -m pip install --quiet --retries 5 "$@"; then
    rm -rf "$FOVEA_CACHE/tmp"
    die "pip could not install: $*
[setup] is there a network (a proxy: https_proxy), and space below '$FOVEA_CACHE'? What is downloaded is kept.
[setup] without a network: docs/building.md, 'Offline'" "make setup   (again)"
  fi
  rm -rf "$FOVEA_CACHE/pip" "$FOVEA_CACHE/tmp"
}
