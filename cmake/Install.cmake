# What `cmake --install` and the Python wheel put where, by component:
#   runtime      bin/zerorun and the programs it brings, libexec/zerorun/
#   development  libzerorun, the public headers, and what find_package(zerorun) reads
#   python       the module zerorun._C (python/CMakeLists.txt)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(bindir ${CMAKE_INSTALL_BINDIR})
set(libexecdir ${CMAKE_INSTALL_LIBEXECDIR})
if(SKBUILD)  # a wheel: bin/ and the rest of the environment are two folders until it is installed
  set(bindir ${SKBUILD_SCRIPTS_DIR})
  set(libexecdir ${SKBUILD_DATA_DIR}/libexec)
endif()
install(TARGETS zerorun_command DESTINATION ${bindir} COMPONENT runtime)
if(TARGET train)
  install(TARGETS train DESTINATION ${libexecdir}/zerorun COMPONENT runtime)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/zerorun)
install(TARGETS zerorun EXPORT zerorun COMPONENT development)
install(
  DIRECTORY include/zerorun ${CMAKE_CURRENT_BINARY_DIR}/include/zerorun
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.h")
# The shared library hides what it is made of, so the targets file alone is the whole package.
install(EXPORT zerorun NAMESPACE zerorun:: FILE zerorunConfig.cmake
  DESTINATION ${package_dir} COMPONENT development)
write_basic_package_version_file(zerorunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/zerorunConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT development)
