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

# FOVEA_KERNELS: the instruction sets that this build has kernels for, in FOVEA_ISAS. `native` leaves out what this
# machine would never run; tests need `all`.
set(FOVEA_KERNELS all CACHE STRING "all: kernels for every instruction set; native: those that this machine runs")
set_property(CACHE FOVEA_KERNELS PROPERTY STRINGS all native)
if(NOT FOVEA_KERNELS MATCHES "^(all|native)$")
  message(FATAL_ERROR "[cmake] FOVEA_KERNELS: expected all or native; got '${FOVEA_KERNELS}'")
endif()
set(FOVEA_ISAS scalar)
if(DEFINED FOVEA_ISA_avx2)
  list(APPEND FOVEA_ISAS avx2 avx512 avx512_bf16 amx)
  if(FOVEA_KERNELS STREQUAL "native")
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ /dev/null OUTPUT_VARIABLE macros
      COMMAND_ERROR_IS_FATAL ANY)
    # The kernels that a level of AVX-512 lacks are those of avx512, never of avx2.
    if(macros MATCHES "__AVX512BW__")
      list(REMOVE_ITEM FOVEA_ISAS avx2)
    else()
      list(REMOVE_ITEM FOVEA_ISAS avx512)
    endif()
    if(NOT macros MATCHES "__AVX512BF16__")
      list(REMOVE_ITEM FOVEA_ISAS avx512_bf16)
    endif()
    if(NOT macros MATCHES "__AMX_BF16__")
      list(REMOVE_ITEM FOVEA_ISAS amx)
    endif()
  endif()
endif()

# Products and sums contract to FMA; GCC 12 reports its own AVX-512 headers as uninitialised.
set(FOVEA_ATTENTION_OPTIONS -ffp-contract=fast -Wno-uninitialized -Wno-maybe-uninitialized)

# fovea_kernels_left_out(LIST): removes from the list the units of instruction sets that this build leaves out.
function(fovea_kernels_left_out list)
  set(sources ${${list}})
  foreach(isa avx2 avx512 avx512_bf16 amx)
    if(NOT isa IN_LIST FOVEA_ISAS)
      list(FILTER sources EXCLUDE REGEX "kernels/cpu/[a-z_/]+_${isa}(_bfloat16)?\\.cpp$")
    endif()
  endforeach()
  set(${list} ${sources} PARENT_SCOPE)
endfunction()

# fovea_kernel_drivers(SOURCES...): the sources that choose among the instruction sets (fovea/kernels/cpu/isa.h).
function(fovea_kernel_drivers)
  foreach(isa ${FOVEA_ISAS})
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_DEFINITIONS FOVEA_HAS_${isa})
  endforeach()
endfunction()

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
