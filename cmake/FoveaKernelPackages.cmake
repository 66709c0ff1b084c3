# What the kernels need where there are no packages for the processor, or where their library must not need any: fmt from
# its headers, and for the kernels' tests GoogleTest from its sources, both as Debian installs them.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
add_library(fovea_fmt INTERFACE)
add_library(fmt::fmt ALIAS fovea_fmt)
if(FOVEA_PYTHON) # python/src/format.cpp defines the functions; units compile as in the whole build, so that ccache has them
  target_compile_definitions(fovea_fmt INTERFACE FMT_SHARED)
  return()
endif()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include)
file(CREATE_LINK /usr/include/fmt ${CMAKE_BINARY_DIR}/include/fmt SYMBOLIC)
target_include_directories(fovea_fmt SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/include)
target_compile_definitions(fovea_fmt INTERFACE FMT_HEADER_ONLY)
set(INSTALL_GTEST OFF)
add_subdirectory(/usr/src/googletest ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
