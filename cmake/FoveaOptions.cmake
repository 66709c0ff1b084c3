# Interface target fovea_options: what every target of ours compiles with.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0

add_library(fovea_options INTERFACE)
# In $<BUILD_INTERFACE>: who uses the installed library chooses warnings for himself.
foreach(option -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wno-float-conversion
        -Wno-missing-field-initializers # designated initialisers leave the rest at its defaults
        -fPIC -fno-semantic-interposition # the same objects serve programs and the library that Python loads
        -fopenmp)
  target_compile_options(fovea_options INTERFACE $<BUILD_INTERFACE:${option}>)
endforeach()
if(FOVEA_WERROR)
  target_compile_options(fovea_options INTERFACE $<BUILD_INTERFACE:-Werror>)
endif()
target_include_directories(fovea_options INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>
  $<INSTALL_INTERFACE:include>)
if(FOVEA_SANITIZE)
  # No vptr check: it would need run-time type information that libtorch does not export.
  target_compile_options(fovea_options INTERFACE
    -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined -fno-omit-frame-pointer
    -Wno-error=maybe-uninitialized)  # GCC 12 reports it falsely in instrumented code
  target_link_options(fovea_options INTERFACE -fsanitize=address,undefined)
endif()
if(FOVEA_SANITIZE_THREADS)
  target_compile_options(fovea_options INTERFACE -fsanitize=thread -Wno-error=maybe-uninitialized)
  target_link_options(fovea_options INTERFACE -fsanitize=thread)
endif()

find_program(FOVEA_MOLD mold)
if(FOVEA_MOLD AND NOT CMAKE_CROSSCOMPILING)
  target_link_options(fovea_options INTERFACE $<BUILD_INTERFACE:-fuse-ld=mold>)
endif()

# A header set that most sources of the target share, compiled once (house rule: narrow headers first). The set must have
# been compiled with the target's options; without a name it is the tensors' one.
function(fovea_precompile target)
  set(set fovea_pch ${ARGN})
  list(GET set -1 set)
  if(TARGET ${set})
    target_precompile_headers(${target} REUSE_FROM ${set})
  endif()
endfunction()
