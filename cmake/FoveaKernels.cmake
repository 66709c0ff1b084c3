# Kernels: what their units compile with, and the units themselves, generated from fovea/kernels/kernels.cmake.
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
# Products and sums contract to FMA; GCC 12 reports its own AVX-512 headers as uninitialised.
set(FOVEA_CONTRACTED -ffp-contract=fast -Wno-uninitialized -Wno-maybe-uninitialized)

set(FOVEA_KERNELS all CACHE STRING "all: kernels for every instruction set; native: those that this machine runs")
set_property(CACHE FOVEA_KERNELS PROPERTY STRINGS all native)
if(NOT FOVEA_KERNELS MATCHES "^(all|native)$")
  message(FATAL_ERROR "[cmake] FOVEA_KERNELS: expected all or native; got '${FOVEA_KERNELS}'")
endif()
set(FOVEA_NATIVE_MACROS)
if(FOVEA_KERNELS STREQUAL "native")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ /dev/null
                  OUTPUT_VARIABLE FOVEA_NATIVE_MACROS COMMAND_ERROR_IS_FATAL ANY)
  # Intel's kernels of avx512_bf16 that multiply pairs give way to those of avx512 (common/pair_products.h).
  set(FOVEA_GIVES_WAY "")
  if(EXISTS /proc/cpuinfo)
    file(READ /proc/cpuinfo cpus LIMIT 4096)
    if(cpus MATCHES "GenuineIntel")
      set(FOVEA_GIVES_WAY avx512_bf16)
    endif()
  endif()
endif()

# fovea_isa(NAME [PROCESSORS regex] [NEEDS macros...] [UNLESS regex] [NARROW] [OPTIONS options...]): an instruction set, of
# which this build has kernels unless its processors are others or, with FOVEA_KERNELS=native, this machine lacks a macro
# that it needs or has one of a set which serves in its place. NARROW: only families that name it have units for it.
function(fovea_isa name)
  cmake_parse_arguments(ISA "NARROW" "PROCESSORS;UNLESS" "NEEDS;OPTIONS" ${ARGN})
  set(FOVEA_ISA_${name} ${ISA_OPTIONS} PARENT_SCOPE)
  if(ISA_PROCESSORS AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "${ISA_PROCESSORS}")
    return()
  endif()
  if(FOVEA_NATIVE_MACROS)
    foreach(macro ${ISA_NEEDS})
      if(NOT FOVEA_NATIVE_MACROS MATCHES "define ${macro} ")
        return()
      endif()
    endforeach()
    if(ISA_UNLESS AND FOVEA_NATIVE_MACROS MATCHES "define (${ISA_UNLESS}) ")
      return()
    endif()
  endif()
  set(FOVEA_ISAS ${FOVEA_ISAS} ${name} PARENT_SCOPE)
  if(NOT ISA_NARROW)
    set(FOVEA_COMMON_ISAS ${FOVEA_COMMON_ISAS} ${name} PARENT_SCOPE)
  endif()
endfunction()

set(x86 PROCESSORS "x86_64|AMD64")
set(arm PROCESSORS "aarch64|arm64")
set(avx2 -march=x86-64-v3)
set(avx512 -march=x86-64-v4 -mprefer-vector-width=512)
set(avx512_bf16 ${avx512} -mavx512bf16 -mavx512vnni)
# Ascending, as in fovea/kernels/common/isa.h. The kernels that a level of AVX-512 lacks are those of avx512, never of avx2.
# Scalar kernels serve processors that the others leave out; -O3 would double the time to compile them.
fovea_isa(scalar UNLESS "__AVX2__|__ARM_NEON" OPTIONS -O1)
fovea_isa(neon ${arm} OPTIONS -DFOVEA_NEON)
# On trial: a native build has no kernels of it.
fovea_isa(neon_bf16 ${arm} NARROW NEEDS FOVEA_ON_TRIAL OPTIONS -DFOVEA_NEON -march=armv8.6-a)
fovea_isa(avx2 ${x86} NEEDS __AVX2__ UNLESS __AVX512BW__ OPTIONS ${avx2})
fovea_isa(avx512 ${x86} NEEDS __AVX512BW__ OPTIONS ${avx512})
fovea_isa(avx512_bf16 ${x86} NARROW NEEDS __AVX512BF16__ __AVX512VNNI__ OPTIONS ${avx512_bf16})
fovea_isa(amx ${x86} NARROW NEEDS __AMX_BF16__ OPTIONS ${avx512_bf16} -mamx-tile -mamx-bf16 -DFOVEA_TILES)
# Kernels of one instruction set alone. Not with AMX, whose tiles the operating system may refuse: then all that are offered.
set(FOVEA_ONE_ISA OFF)
if(FOVEA_NATIVE_MACROS AND NOT amx IN_LIST FOVEA_ISAS)
  set(FOVEA_ONE_ISA ON)
endif()

# fovea_kernel_sources(ISA SOURCES... [OPTIONS options...]): the sources compile as kernels of an instruction set, or of none
# of them (`any`).
function(fovea_kernel_sources isa)
  cmake_parse_arguments(K "" "" "OPTIONS" ${ARGN})
  set_property(SOURCE ${K_UNPARSED_ARGUMENTS} APPEND PROPERTY COMPILE_OPTIONS
    ${FOVEA_KERNEL_OPTIONS} ${FOVEA_ISA_${isa}} ${K_OPTIONS})
endfunction()

# fovea_kernels(FAMILY TABLE [TYPES types...] [ALSO isas...] [APART] [OPTIONS options...] [AMX_OPTIONS options...]): for each
# instruction set a unit that includes fovea/kernels/cpu/<FAMILY>_rows.h and defines kernel_table() by its table_of().
#
# TABLE<type> is a table where there are TYPES. ALSO: narrow instruction sets, for bfloat16 alone where there are types.
# APART: a unit for each type. Units include by path from the root, so that ccache knows them in another clone.
# FOVEA_ONE_ISA: in bfloat16, and where there are no types, kernels of the instruction set that serves here alone.
set(FOVEA_KERNEL_UNIT [[
// @family@, for @isa@: cmake/FoveaKernels.cmake makes it.
#include "fovea/kernels/cpu/@family@_rows.h"

namespace fovea::kernels {
@tables@
}  // namespace fovea::kernels
]])
set(FOVEA_KERNEL_TABLE [[

template <>
const @full@& kernel_table<@full@, Isa::@isa@>() {
  static const @full@ table = table_of<@arguments@>();
  return table;
}
]])
function(fovea_kernels family table)
  cmake_parse_arguments(K "APART" "" "TYPES;ALSO;OPTIONS;AMX_OPTIONS" ${ARGN})
  if(NOT EXISTS ${CMAKE_SOURCE_DIR}/fovea/kernels/cpu/${family}_rows.h)
    message(FATAL_ERROR "[cmake] expected the kernels fovea/kernels/cpu/${family}_rows.h; got no such file")
  endif()
  get_filename_component(name ${family} NAME)
  set(isas ${FOVEA_COMMON_ISAS})
  foreach(isa ${FOVEA_ISAS})
    if(isa IN_LIST K_ALSO)
      list(APPEND isas ${isa})
    endif()
  endforeach()
  set(isas_of_BFloat16 ${isas})
  if(FOVEA_ONE_ISA)
    list(REMOVE_ITEM isas_of_BFloat16 ${FOVEA_GIVES_WAY})
    list(GET isas_of_BFloat16 -1 isas_of_BFloat16)
    if(NOT K_TYPES)
      list(GET isas -1 isas)
    endif()
  endif()
  set(units)
  foreach(isa ${isas})
    set(types ${K_TYPES})
    if(NOT types)
      set(types none)
    elseif(NOT isa IN_LIST FOVEA_COMMON_ISAS)
      set(types BFloat16)
    endif()
    if(K_TYPES AND NOT isa IN_LIST isas_of_BFloat16)
      list(REMOVE_ITEM types BFloat16)
    endif()
    foreach(type ${types})
      set(full ${table})
      set(arguments Isa::${isa})
      if(K_TYPES)
        set(full "${table}<${type}>")
        set(arguments "Isa::${isa}, ${type}")
      endif()
      set(unit ${name}_${isa})
      if(K_APART)
        string(TOLOWER ${unit}_${type} unit)
      endif()
      list(APPEND units ${unit})
      set(isa_of_${unit} ${isa})
      string(CONFIGURE "${FOVEA_KERNEL_TABLE}" text @ONLY)
      string(APPEND tables_of_${unit} "${text}")
      string(APPEND levels_of_${type} "      {Isa::${isa}, kernel_table<${full}, Isa::${isa}>},\n")
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES units)
  foreach(unit ${units})
    set(isa ${isa_of_${unit}})
    set(tables "${tables_of_${unit}}")
    set(file ${CMAKE_BINARY_DIR}/kernels/${unit}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${FOVEA_KERNEL_UNIT}" @ONLY)
    if(isa STREQUAL "amx")
      list(APPEND K_OPTIONS ${K_AMX_OPTIONS})
    endif()
    fovea_kernel_sources(${isa} ${file} OPTIONS ${K_OPTIONS})
    set_property(GLOBAL APPEND PROPERTY FOVEA_KERNEL_UNITS ${file})
  endforeach()
  foreach(type ${K_TYPES})
    fovea_kernel_levels("${table}<${type}>" "${levels_of_${type}}")
  endforeach()
  if(NOT K_TYPES)
    fovea_kernel_levels(${table} "${levels_of_none}")
  endif()
endfunction()

function(fovea_kernel_levels table levels)
  set_property(GLOBAL APPEND_STRING PROPERTY FOVEA_KERNEL_LEVELS "
template <>
std::span<const KernelLevel<${table}>> kernel_levels() {
  static constexpr KernelLevel<${table}> levels[] = {
${levels}  };
  return levels;
}
")
endfunction()

# fovea_add_kernels(TARGET [HEADERS...]): adds all units to the target, and the lists of the levels that this build has, whose
# tables the headers declare.
function(fovea_add_kernels target)
  get_property(units GLOBAL PROPERTY FOVEA_KERNEL_UNITS)
  get_property(levels GLOBAL PROPERTY FOVEA_KERNEL_LEVELS)
  list(TRANSFORM ARGN REPLACE "(.+)" "#include \"fovea/kernels/cpu/\\1\"" OUTPUT_VARIABLE includes)
  list(JOIN includes "\n" includes)
  set(isas ${FOVEA_ISAS})
  if(FOVEA_ONE_ISA) # some kernels need the last; those of the others have holes, so FOVEA_ISA may not name them
    list(GET isas -1 isas)
  endif()
  list(TRANSFORM isas PREPEND "Isa::")
  list(JOIN isas ", " isas)
  set(file ${CMAKE_BINARY_DIR}/kernels/kernel_levels.cpp)
  file(CONFIGURE OUTPUT ${file} CONTENT "// The kernels of this build: cmake/FoveaKernels.cmake makes the list.
${includes}
#include \"fovea/kernels/cpu/kernel_levels.h\"

namespace fovea {

std::span<const Isa> built_isas() {
  static constexpr Isa isas[] = {${isas}};
  return isas;
}

namespace kernels {
${levels}
}  // namespace kernels
}  // namespace fovea
" @ONLY)
  target_sources(${target} PRIVATE ${units} ${file})
endfunction()
