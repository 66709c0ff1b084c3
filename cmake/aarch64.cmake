# Toolchain: Debian's cross compiler for AArch64, and qemu to run what it makes (scripts/test-aarch64.sh). With libraries of
# other packages (scripts/test-aarch64-program.sh), FOVEA_AARCH64_ROOT of the environment is the folder that has them.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
find_program(compiler NAMES aarch64-linux-gnu-g++-12 aarch64-linux-gnu-g++ REQUIRED)
string(REPLACE "g++" "gcc" c_compiler ${compiler})
set(CMAKE_C_COMPILER ${c_compiler})
set(CMAKE_CXX_COMPILER ${compiler})
if(DEFINED ENV{FOVEA_AARCH64_ROOT})
  set(CMAKE_SYSROOT $ENV{FOVEA_AARCH64_ROOT})
  set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
  foreach(kind LIBRARY INCLUDE PACKAGE)
    set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
  endforeach()
else()
  set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
