# Installs the build into a temporary folder, and builds and runs the consumer there, outside the build tree.
#
#   cmake -DBUILD=... -DCONSUMER=... -DNINJA=... [-DCOMPILER=...] -P run.cmake
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set(temporary $ENV{TMPDIR})
if(NOT temporary)
  set(temporary /tmp)
endif()
string(RANDOM LENGTH 12 name)
set(folder ${temporary}/fovea-package-${name})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    file(REMOVE_RECURSE ${folder})
    message(FATAL_ERROR "failed (${status}): ${ARGN}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${folder}/prefix)
file(COPY ${CONSUMER}/ DESTINATION ${folder}/source)
run(${CMAKE_COMMAND} -G Ninja -S ${folder}/source -B ${folder}/build -DCMAKE_PREFIX_PATH=${folder}/prefix
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Debug)
run(${CMAKE_COMMAND} --build ${folder}/build)
run(${folder}/build/consumer)
if(NOT output MATCHES "consumer: [0-9]+ tokens")
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()
run(${folder}/prefix/bin/fovea --version) # the installed program finds torch too
file(REMOVE_RECURSE ${folder})
