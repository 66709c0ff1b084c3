# The library of exchanges between GPUs, libfovea_nccl.so, where nvcc of CUDA 13 is and the nccl.h of torch's own version: in
# the toolkit, or in the wheel that `make gpu` brings. Without them there is none and nothing else changes: ranks on GPUs
# are refused then. The program loads it together with torch's CUDA half and is not linked to either.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)

# fovea_find_nccl(): FOVEA_NCCL_INCLUDE, the folder of nccl.h. torch's objects hold structures of NCCL, whose sizes change
# between minor versions, so that the header must be of the version that torch asks for.
function(fovea_find_nccl)
  file(GLOB metadata ${FOVEA_TORCH_DIR}/../torch-*.dist-info/METADATA)
  set(wanted)
  if(metadata)
    list(GET metadata 0 metadata)
    file(STRINGS ${metadata} lines REGEX "^Requires-Dist: nvidia-nccl-cu13==")
    string(REGEX MATCH "==([0-9]+\\.[0-9]+)" found "${lines}")
    set(wanted "${CMAKE_MATCH_1}")
  endif()
  if(NOT wanted)
    message(STATUS "torch names no version of NCCL: no exchanges between GPUs (docs/gpu.md)")
    return()
  endif()
  foreach(folder ${FOVEA_TORCH_DIR}/../nvidia/nccl/include ${FOVEA_CUDA_DIR}/include)
    if(NOT EXISTS ${folder}/nccl.h)
      continue()
    endif()
    file(STRINGS ${folder}/nccl.h lines REGEX "^#define NCCL_(MAJOR|MINOR) ")
    string(REGEX REPLACE "[^;]* ([0-9]+)" "\\1" numbers "${lines}")
    string(REPLACE ";" "." version "${numbers}")
    if(version STREQUAL wanted)
      set(FOVEA_NCCL_INCLUDE ${folder} PARENT_SCOPE)
      return()
    endif()
    message(STATUS "${folder}/nccl.h is of NCCL ${version}; torch has ${wanted}")
  endforeach()
  message(STATUS "no nccl.h of ${wanted}: no exchanges between GPUs (docs/gpu.md)")
endfunction()

set(FOVEA_NCCL_INCLUDE)
if(FOVEA_CUDA_DIR AND EXISTS ${FOVEA_TORCH_DIR}/lib/libtorch_cuda.so)
  fovea_find_nccl()
endif()
if(FOVEA_NCCL_INCLUDE)
  add_library(fovea_nccl SHARED ${CMAKE_SOURCE_DIR}/fovea/runtime/nccl/nccl_exchange.cpp)
  target_compile_definitions(fovea_nccl PRIVATE USE_C10D_NCCL USE_DISTRIBUTED)
  target_include_directories(fovea_nccl SYSTEM PRIVATE ${FOVEA_NCCL_INCLUDE} ${FOVEA_CUDA_DIR}/include)
  # NCCL itself is loaded with torch: its symbols are not looked for here.
  target_link_libraries(fovea_nccl PRIVATE fovea_options fovea_torch ${FOVEA_TORCH_DIR}/lib/libtorch_cuda.so
    ${FOVEA_TORCH_DIR}/lib/libc10_cuda.so)
  set_target_properties(fovea_nccl PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
  install(TARGETS fovea_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
endif()
