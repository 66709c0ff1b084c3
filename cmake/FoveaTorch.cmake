# Imported target fovea_torch: libtorch from the pip wheel, without find_package(Torch).
#
# The wheel's own CMake package pulls in the CUDA toolkit and NVRTC; C++ needs only two libraries of
# it (plus their CUDA twins, loaded where a driver is). FOVEA_TORCH_DIR is the wheel's `torch` folder.

if(NOT FOVEA_TORCH_DIR)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/torch-dir.sh
                  OUTPUT_VARIABLE FOVEA_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT EXISTS "${FOVEA_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "[cmake] no torch wheel at '${FOVEA_TORCH_DIR}': run 'make setup' first, "
                      "or pass -DFOVEA_TORCH_DIR=<site-packages>/torch")
endif()
set(FOVEA_TORCH_DIR "${FOVEA_TORCH_DIR}" CACHE PATH "the torch folder of the pip wheel")

# The wheel carries the headers of another fmt than Debian's library: ours must be found first.
find_package(fmt REQUIRED)
get_target_property(fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/first-include)
file(CREATE_LINK ${fmt_include}/fmt ${CMAKE_BINARY_DIR}/first-include/fmt SYMBOLIC)

# Imported, so that the installed package can name it without containing it.
add_library(fovea_torch INTERFACE IMPORTED GLOBAL)
target_include_directories(fovea_torch SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/first-include
  ${FOVEA_TORCH_DIR}/include ${FOVEA_TORCH_DIR}/include/torch/csrc/api/include)
target_link_libraries(fovea_torch INTERFACE
  ${FOVEA_TORCH_DIR}/lib/libtorch_cpu.so ${FOVEA_TORCH_DIR}/lib/libc10.so
  ${FOVEA_TORCH_DIR}/lib/libgomp.so.1) # the wheel's own OpenMP, so that the program has one
# libtorch_cpu finds libcupti and libcudart through its own RPATH; DT_RPATH (not RUNPATH) on our side
# keeps that working for indirect libraries too.
target_link_options(fovea_torch INTERFACE
  "LINKER:-rpath,${FOVEA_TORCH_DIR}/lib" "LINKER:--disable-new-dtags"
  "LINKER:--allow-shlib-undefined")
