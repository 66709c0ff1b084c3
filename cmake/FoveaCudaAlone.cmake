# The CUDA kernels without the rest of Fovea, on a machine that has nvcc, PyTorch for Python and no packages of ours:
# libfovea_cuda.so, and libfovea_gpu_bench.so for benchmarks/gpu.py. FOVEA_FMT_INCLUDE: a folder that holds fmt/.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
if(NOT EXISTS "${FOVEA_FMT_INCLUDE}/fmt/format.h")
  message(FATAL_ERROR "[cmake] FOVEA_FMT_INCLUDE: expected a folder with fmt/format.h; got '${FOVEA_FMT_INCLUDE}'")
endif()
if(NOT FOVEA_CUDA_DIR)
  message(FATAL_ERROR "[cmake] expected an nvcc of CUDA 13 on the path; got none")
endif()
# fmt alone: other headers of that folder may be of another version than a toolkit's.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include)
file(CREATE_LINK ${FOVEA_FMT_INCLUDE}/fmt ${CMAKE_BINARY_DIR}/include/fmt SYMBOLIC)
add_library(fovea_fmt INTERFACE)
add_library(fmt::fmt ALIAS fovea_fmt)
target_include_directories(fovea_fmt SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/include)
target_compile_definitions(fovea_fmt INTERFACE FMT_HEADER_ONLY)
include(${CMAKE_SOURCE_DIR}/fovea/kernels/cuda.cmake)
find_package(Threads REQUIRED)
set(common ${CMAKE_SOURCE_DIR}/fovea/kernels/common)
add_library(fovea_gpu_bench SHARED ${CMAKE_SOURCE_DIR}/benchmarks/gpu_binding.cpp ${CMAKE_SOURCE_DIR}/fovea/kernels/backend.cpp ${common}/visits.cpp ${common}/tile_ranges.cpp)
target_include_directories(fovea_gpu_bench SYSTEM PRIVATE ${FOVEA_CUDA_DIR}/include)
target_link_libraries(fovea_gpu_bench PRIVATE fovea_options fmt::fmt fovea_cuda ${FOVEA_CUDART} ${CMAKE_DL_LIBS} rt Threads::Threads)
set_target_properties(fovea_gpu_bench PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
