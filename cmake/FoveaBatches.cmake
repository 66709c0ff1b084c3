# fovea_batches(OUT TARGET SOURCES...): sources that compile together, so that a build from nothing reads the headers
# once for several of them. A developer who changes one file again and again compiles it alone with -DFOVEA_BATCH=1.
#
# The sources of one folder, in the order of their names, FOVEA_BATCH at a time, are included by a file of their own under
# build/batches/, by their path from the root: so ccache knows them again in another clone, and scripts/lint.py finds
# them. A source that has options or definitions of its own (set before the call) stays alone, and so does every folder
# whose units share names by design. Names in an anonymous namespace are seen by the whole batch: tests have a namespace
# a file, other units distinct names.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set(FOVEA_BATCH 12 CACHE STRING "Sources that compile together (1: each alone)")
# Kernels are of one form each and read no large headers.
set(FOVEA_ALONE "^fovea/kernels/")

function(fovea_batches out target)
  set(sources ${ARGN})
  set(result)
  set(folders)
  foreach(source ${sources})
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR} ${source})
    if(FOVEA_BATCH LESS 2 OR options OR definitions OR name MATCHES "${FOVEA_ALONE}")
      list(APPEND result ${source})
    else()
      get_filename_component(folder ${name} DIRECTORY)
      string(REPLACE "/" "_" folder ${folder})
      list(APPEND folders ${folder})
      list(APPEND in_${folder} ${name})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder ${folders})
    list(LENGTH in_${folder} count)
    math(EXPR batches "(${count} + ${FOVEA_BATCH} - 1) / ${FOVEA_BATCH}")
    math(EXPR last "${batches} - 1")
    foreach(batch RANGE ${last})
      math(EXPR begin "${count} * ${batch} / ${batches}")
      math(EXPR size "${count} * (${batch} + 1) / ${batches} - ${begin}")
      list(SUBLIST in_${folder} ${begin} ${size} names)
      list(TRANSFORM names REPLACE "(.+)" "#include \"\\1\"\n")
      list(JOIN names "" text)
      set(file ${CMAKE_BINARY_DIR}/batches/${folder}_${batch}.cpp)
      file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
      list(APPEND result ${file})
    endforeach()
  endforeach()
  set(${out} ${result} PARENT_SCOPE)
endfunction()
