# What the kernels and their tests need where there are no packages for the processor: fmt as a header alone, GoogleTest
# from its sources, both as Debian installs them.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include)
file(CREATE_LINK /usr/include/fmt ${CMAKE_BINARY_DIR}/include/fmt SYMBOLIC)
add_library(fovea_fmt INTERFACE)
add_library(fmt::fmt ALIAS fovea_fmt)
target_include_directories(fovea_fmt SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/include)
target_compile_definitions(fovea_fmt INTERFACE FMT_HEADER_ONLY)
if(FOVEA_PYTHON)
  return()
endif()
set(INSTALL_GTEST OFF)
add_subdirectory(/usr/src/googletest ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
