# cmake --install: the program, the headers, one static library a layer, and the package for find_package(Fovea CONFIG).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(layers GLOBAL PROPERTY FOVEA_LAYERS)
# For a program: the highest layer, which brings all others, and the operators.
add_library(fovea_library INTERFACE)
list(GET layers -1 highest)
target_link_libraries(fovea_library INTERFACE ${highest} fovea_operators)
target_compile_features(fovea_library INTERFACE cxx_std_20)
set_target_properties(fovea_library PROPERTIES EXPORT_NAME fovea)
add_library(Fovea::fovea ALIAS fovea_library)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Fovea)
install(TARGETS ${layers} fovea_library fovea_options fovea_cli EXPORT FoveaTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS fovea RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/fovea DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${CMAKE_SOURCE_DIR}/cli/program.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cli)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/fovea)
install(EXPORT FoveaTargets NAMESPACE Fovea:: DESTINATION ${package})
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/FoveaConfig.cmake.in ${CMAKE_BINARY_DIR}/FoveaConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/FoveaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/FoveaConfig.cmake ${CMAKE_BINARY_DIR}/FoveaConfigVersion.cmake
  cmake/FoveaTorch.cmake cmake/FoveaPackages.cmake DESTINATION ${package})
