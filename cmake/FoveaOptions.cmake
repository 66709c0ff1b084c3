# Interface target fovea_options: what every target of ours compiles with.

add_library(fovea_options INTERFACE)
target_compile_options(fovea_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wno-float-conversion -Werror -fopenmp)
target_include_directories(fovea_options INTERFACE ${CMAKE_SOURCE_DIR})
if(FOVEA_SANITIZE)
  target_compile_options(fovea_options INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer)
  target_link_options(fovea_options INTERFACE -fsanitize=address,undefined)
endif()

find_program(FOVEA_MOLD mold)
if(FOVEA_MOLD)
  target_link_options(fovea_options INTERFACE -fuse-ld=mold)
endif()

# A header set that most torch-using sources share, compiled once (house rule: narrow headers first).
function(fovea_precompile target)
  target_precompile_headers(${target} REUSE_FROM fovea_pch)
endfunction()
