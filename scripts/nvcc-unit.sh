#!/usr/bin/env bash
# nvcc-unit.sh LOG COMMAND...: runs a compiler; what it prints (ptxas tells registers and spills) goes to LOG, and to the
# terminal too where it fails.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
log=$1
shift
"$@" > "$log" 2>&1 || { status=$?; cat "$log" >&2; exit $status; }
