# Toolchain: Debian's cross compiler for AArch64, and qemu to run what it makes (scripts/test-aarch64.sh).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
find_program(compiler NAMES aarch64-linux-gnu-g++-12 aarch64-linux-gnu-g++ REQUIRED)
string(REPLACE "g++" "gcc" c_compiler ${compiler})
set(CMAKE_C_COMPILER ${c_compiler})
set(CMAKE_CXX_COMPILER ${compiler})
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
