# The library of CUDA kernels, libfovea_cuda.so, where an nvcc of CUDA 13 is; without one, and with FOVEA_CUDA=OFF, there is
# none and nothing else changes. The program loads it together with torch's CUDA half and is not linked to it.
#
# nvcc is called as a command, not as a language of CMake: each kernel is a unit of its own with its own architecture, which
# ccache knows again, and a configuration without CUDA costs no compiler check.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
set(FOVEA_CUDA AUTO CACHE STRING "AUTO: CUDA kernels where nvcc of CUDA 13 is; OFF: none")
set_property(CACHE FOVEA_CUDA PROPERTY STRINGS AUTO OFF)
if(NOT FOVEA_CUDA MATCHES "^(AUTO|OFF)$")
  message(FATAL_ERROR "[cmake] FOVEA_CUDA: expected AUTO or OFF; got '${FOVEA_CUDA}'")
endif()
set(FOVEA_CUDA_UNITS few CACHE STRING "few: plain causal CUDA kernels, and those that know every causal setting; all: one for each form")
set_property(CACHE FOVEA_CUDA_UNITS PROPERTY STRINGS few all)
if(NOT FOVEA_CUDA_UNITS MATCHES "^(few|all)$")
  message(FATAL_ERROR "[cmake] FOVEA_CUDA_UNITS: expected few or all; got '${FOVEA_CUDA_UNITS}'")
endif()

# fovea_find_nvcc(): FOVEA_NVCC, the compiler, and FOVEA_CUDA_DIR, its toolkit: the machine's, or the wheels of make gpu.
function(fovea_find_nvcc)
  set(packages "${FOVEA_TORCH_DIR}/..")
  find_program(FOVEA_NVCC nvcc HINTS /usr/local/cuda/bin ${packages}/nvidia/cu13/bin)
  if(NOT FOVEA_NVCC)
    message(STATUS "no nvcc: no CUDA kernels of ours (docs/gpu.md)")
    return()
  endif()
  execute_process(COMMAND ${FOVEA_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+)" found "${text}")
  if(NOT found OR CMAKE_MATCH_1 LESS 13)
    message(STATUS "nvcc is not of CUDA 13: no CUDA kernels of ours (docs/gpu.md)")
    return()
  endif()
  cmake_path(GET FOVEA_NVCC PARENT_PATH bin)
  cmake_path(GET bin PARENT_PATH toolkit)
  foreach(folder lib64 lib)
    if(EXISTS ${toolkit}/${folder}/libcudart_static.a)
      set(FOVEA_CUDA_DIR ${toolkit} PARENT_SCOPE)
      set(FOVEA_CUDART ${toolkit}/${folder}/libcudart_static.a PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(STATUS "nvcc without libcudart_static.a: no CUDA kernels of ours (docs/gpu.md)")
endfunction()

set(FOVEA_CUDA_DIR)
if(NOT FOVEA_CUDA STREQUAL "OFF" AND NOT CMAKE_CROSSCOMPILING AND NOT FOVEA_SANITIZE AND NOT FOVEA_SANITIZE_THREADS)
  fovea_find_nvcc()
endif()

# Architectures: mma.sync for 8.0 on (with stmatrix: 9.0 on), newer GPUs translate its PTX; wgmma exists on 9.0 alone.
set(FOVEA_CUDA_mma "-gencode=arch=compute_80,code=[sm_80,compute_80]")
set(FOVEA_CUDA_wgmma "-gencode=arch=compute_90a,code=sm_90a")
set(FOVEA_CUDA_mixing "-gencode=arch=compute_90,code=[sm_90,compute_90]")
set(FOVEA_CUDA_rows ${FOVEA_CUDA_mma} "-gencode=arch=compute_90,code=sm_90")

# fovea_cuda_unit(NAME GENERATION TEXT): compiles TEXT as a unit; its object joins FOVEA_CUDA_OBJECTS.
function(fovea_cuda_unit name generation text)
  set(source ${CMAKE_BINARY_DIR}/cuda/${name}.cu)
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  file(CONFIGURE OUTPUT ${source} CONTENT "// A unit of the CUDA kernels: cmake/FoveaCuda.cmake makes it.\n${text}" @ONLY)
  # Relative paths from the build folder, so that ccache knows the unit in another clone and build.
  file(RELATIVE_PATH short ${CMAKE_CURRENT_BINARY_DIR} ${source})
  file(RELATIVE_PATH root ${CMAKE_CURRENT_BINARY_DIR} ${CMAKE_SOURCE_DIR})
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_SOURCE_DIR}/scripts/nvcc-unit.sh ${object}.log ${CMAKE_CXX_COMPILER_LAUNCHER} ${FOVEA_NVCC} -std=c++20 -O3 -I${root} --expt-relaxed-constexpr
            -Xcompiler=-fPIC -Xptxas=-v ${FOVEA_CUDA_${generation}} -MD -MF ${object}.d
            -c -o ${object} ${short}
    DEPENDS ${source} DEPFILE ${object}.d WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} VERBATIM
    COMMENT "nvcc ${name}")
  set_property(GLOBAL APPEND PROPERTY FOVEA_CUDA_OBJECTS ${object})
endfunction()

# fovea_cuda_attention(GENERATION HEAD_SIZE SCORE MASK): the attention kernels of one form, forward and backward, and their
# row of the list.
function(fovea_cuda_attention generation head_dim score mask)
  foreach(pass forward backward)
    fovea_cuda_unit(${generation}_${head_dim}_${score}_${mask}_${pass} ${generation}
"#include \"fovea/kernels/cuda/attention/launch_${generation}.cuh\"

namespace fovea::kernels::cuda {
template int ${generation}_${pass}<${head_dim}, ScoreForm::${score}, MaskForm::${mask}>(const Problem&, Stream);
}  // namespace fovea::kernels::cuda
")
  endforeach()
  set_property(GLOBAL APPEND_STRING PROPERTY FOVEA_CUDA_ROWS
"      unit_of<Generation::${generation}, ${head_dim}, ScoreForm::${score}, MaskForm::${mask}>(),\n")
endfunction()

# fovea_cuda_rows(HEAD_SIZE): the passes over rows around the backward kernels of a head size.
function(fovea_cuda_rows head_dim)
  fovea_cuda_unit(rows_${head_dim} rows
"#include \"fovea/kernels/cuda/attention/launch_rows.cuh\"

namespace fovea::kernels::cuda {
template int before_backward<${head_dim}>(const Problem&, Stream);
template int after_mma_backward<${head_dim}>(const Problem&, bool, bool, Stream);
template int after_wgmma_backward<${head_dim}>(const Problem&, bool, bool, Stream);
}  // namespace fovea::kernels::cuda
")
endfunction()

# fovea_cuda_plan(): the plan of hard Focus.
function(fovea_cuda_plan)
  fovea_cuda_unit(plan rows "#include \"fovea/kernels/cuda/attention/plan.cuh\"\n")
endfunction()

# fovea_cuda_decoder(): the kernels of one decoded token.
function(fovea_cuda_decoder)
  fovea_cuda_unit(decoder rows "#include \"fovea/kernels/cuda/decode/launches.cuh\"\n")
endfunction()

# fovea_cuda_mixing(HEAD_SIZES...): the mixing kernels of these head sizes, and their list.
function(fovea_cuda_mixing)
  foreach(head_dim ${ARGN})
    foreach(pass forward backward)
      fovea_cuda_unit(mixing_${head_dim}_${pass} mixing
"#include \"fovea/kernels/cuda/mixing/launch_convolution.cuh\"

namespace fovea::kernels::cuda::mixing {
template int convolution_${pass}<${head_dim}>(const Problem&, Stream);
}  // namespace fovea::kernels::cuda::mixing
")
    endforeach()
    fovea_cuda_unit(mixing_${head_dim}_products mixing
"#include \"fovea/kernels/cuda/mixing/launch_products.cuh\"

template struct fovea::kernels::cuda::mixing::Products<${head_dim}>;
")
    set_property(GLOBAL APPEND_STRING PROPERTY FOVEA_CUDA_MIXING_ROWS "      head_size_of<${head_dim}>(),\n")
  endforeach()
  fovea_cuda_unit(mixing_mixes mixing "#include \"fovea/kernels/cuda/mixing/launch_mixes.cuh\"\n")
endfunction()

# fovea_cuda_gate(): the passes over tokens around kernels with a soft gate.
function(fovea_cuda_gate)
  fovea_cuda_unit(gate rows "#include \"fovea/kernels/cuda/attention/gate_rows.cuh\"\n")
endfunction()

# fovea_add_cuda(): the target fovea_cuda of all units so far.
function(fovea_add_cuda)
  get_property(objects GLOBAL PROPERTY FOVEA_CUDA_OBJECTS)
  get_property(rows GLOBAL PROPERTY FOVEA_CUDA_ROWS)
  get_property(mixing_rows GLOBAL PROPERTY FOVEA_CUDA_MIXING_ROWS)
  set(list ${CMAKE_BINARY_DIR}/cuda/units.cpp)
  file(CONFIGURE OUTPUT ${list} CONTENT "// The CUDA kernels of this build: cmake/FoveaCuda.cmake makes the list.
#include \"fovea/kernels/cuda/attention/unit_of.h\"
#include \"fovea/kernels/cuda/mixing/launches.h\"

namespace fovea::kernels::cuda {

std::span<const Unit> units() {
  static constexpr Unit all[] = {
${rows}  };
  return all;
}

namespace mixing {

std::span<const HeadSize> head_sizes() {
  static constexpr HeadSize all[] = {
${mixing_rows}  };
  return all;
}

}  // namespace mixing
}  // namespace fovea::kernels::cuda
" @ONLY)
  file(GLOB host CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/fovea/kernels/cuda/*.cpp ${CMAKE_SOURCE_DIR}/fovea/kernels/cuda/*/*.cpp)
  list(FILTER host EXCLUDE REGEX "emulated")
  find_package(Threads REQUIRED)
  add_library(fovea_cuda SHARED ${host} ${list} ${objects})
  target_include_directories(fovea_cuda SYSTEM PRIVATE ${FOVEA_CUDA_DIR}/include)
  target_link_libraries(fovea_cuda PRIVATE fovea_options fmt::fmt ${FOVEA_CUDART} ${CMAKE_DL_LIBS} rt Threads::Threads)
  set_target_properties(fovea_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
  install(TARGETS fovea_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
endfunction()
