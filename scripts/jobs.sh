#!/usr/bin/env bash
# Prints how many compilers may run side by side: one a core, and 1.5 GB of free memory each (libtorch headers are large).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -eu
cores=$(nproc)
by_memory=$(awk '/^MemAvailable:/ { print int($2 / 1500000) }' /proc/meminfo)
jobs=$((cores < by_memory ? cores : by_memory))
echo $((jobs > 1 ? jobs : 1))
