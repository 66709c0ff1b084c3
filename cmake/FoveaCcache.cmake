# ccache for every way of building (make, presets, an editor), set so that another clone of the same sources hits it too.
#
# base_dir makes paths relative, no hash_dir leaves the folder's name out, and the sloppiness is what ccache asks for with
# precompiled headers (a header's content is compared, not its times).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0

find_program(FOVEA_CCACHE ccache)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
if(FOVEA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    env CCACHE_BASEDIR=${root} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    ${FOVEA_CCACHE})
endif()
