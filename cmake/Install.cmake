# Rules of `cmake --install` and of the Python wheel, by component:
#   runtime      bin/zerorun, the programs it brings (libexec/zerorun/), and libzerorun_gloo,
#               libzerorun_cuda and libzerorun_train_cuda
#   development  libzerorun, the public headers, and what find_package(zerorun) reads
#   python       the module zerorun._C (python/CMakeLists.txt)
include(CMakePackageConfigHelpers)

set(bindir ${CMAKE_INSTALL_BINDIR})
set(libexecdir ${CMAKE_INSTALL_LIBEXECDIR})
set(plugindir ${CMAKE_INSTALL_LIBDIR})
if(SKBUILD)  # all in the package, where programs and libraries find each other wherever it lies
  set(bindir zerorun/bin)
  set(libexecdir zerorun/libexec)
  set(plugindir zerorun/lib)
endif()
install(TARGETS zerorun_command DESTINATION ${bindir} COMPONENT runtime)
if(TARGET train)
  install(TARGETS train DESTINATION ${libexecdir}/zerorun COMPONENT runtime)
endif()

if(TARGET zerorun_cuda)  # where device/plugin.cc looks for them
  install(TARGETS zerorun_cuda DESTINATION ${plugindir} COMPONENT runtime)
endif()
if(TARGET zerorun_gloo)
  install(TARGETS zerorun_gloo DESTINATION ${plugindir} COMPONENT runtime)
endif()
if(TARGET zerorun_train_cuda)
  install(TARGETS zerorun_train_cuda DESTINATION ${plugindir} COMPONENT runtime)
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
