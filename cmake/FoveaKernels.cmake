# fovea_kernel_sources(INSTRUCTION_SET SOURCES... [OPTIONS options...]): what kernel units compile with.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0

# Kernels are optimised in every build type: tests of a debug build would take minutes otherwise. Under the sanitizers,
# -O1: a unit of checked and unrolled -O3 code takes minutes to compile.
if(FOVEA_SANITIZE OR FOVEA_SANITIZE_THREADS)
  set(FOVEA_KERNEL_OPTIONS -O1 -fno-math-errno -fno-trapping-math)
else()
  set(FOVEA_KERNEL_OPTIONS -O3 -fno-math-errno -fno-trapping-math)
endif()

set(FOVEA_ISA_scalar)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(FOVEA_ISA_avx2 -march=x86-64-v3)
  set(FOVEA_ISA_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
  set(FOVEA_ISA_avx512_bf16 ${FOVEA_ISA_avx512} -mavx512bf16)
  set(FOVEA_ISA_amx ${FOVEA_ISA_avx512_bf16} -mamx-tile -mamx-bf16 -DFOVEA_TILES)
endif()
# Products and sums contract to FMA; GCC 12 reports its own AVX-512 headers as uninitialised.
set(FOVEA_ATTENTION_OPTIONS -ffp-contract=fast -Wno-uninitialized -Wno-maybe-uninitialized)

function(fovea_kernel_sources isa)
  cmake_parse_arguments(K "" "" "OPTIONS" ${ARGN})
  foreach(source ${K_UNPARSED_ARGUMENTS})
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${source})
      message(FATAL_ERROR "[cmake] expected the kernel source ${source}; got no such file")
    endif()
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS
      ${FOVEA_KERNEL_OPTIONS} ${FOVEA_ISA_${isa}} ${K_OPTIONS})
  endforeach()
endfunction()
