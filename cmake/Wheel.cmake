# What a wheel has besides: places of libraries that are relative, OpenMP's runtime, and licences.
# auditwheel adds other libraries, under names that nothing else has.

# One OpenMP runtime in a process: it keeps its soname, which is also that of PyTorch's, so whichever
# is loaded first serves both. PyTorch's is taken where it lies beside this package.
if(OpenMP_gomp_LIBRARY)
  file(REAL_PATH ${OpenMP_gomp_LIBRARY} openmp)
  install(FILES ${openmp} DESTINATION ${plugindir} RENAME libgomp.so.1 COMPONENT runtime)
endif()
set_target_properties(zerorun_python PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib;$ORIGIN/lib")
set_target_properties(zerorun_command PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
set_target_properties(train PROPERTIES INSTALL_RPATH "$ORIGIN/../../lib")

# Plugins open NVIDIA's libraries by soname: those of the packages that the extras for CUDA name.
# CUDA 13's share a folder, CUDA 12's have one each.
set(cuda_folders "$ORIGIN")
foreach(package cu13 cublas cuda_nvrtc cuda_runtime cudnn nccl)
  list(APPEND cuda_folders "$ORIGIN/../../nvidia/${package}/lib")
endforeach()
foreach(plugin zerorun_cuda zerorun_train_cuda)
  if(TARGET ${plugin})
    set_target_properties(${plugin} PROPERTIES INSTALL_RPATH "${cuda_folders}")
  endif()
endforeach()

# Licences of what THIRD_PARTY.md lists: those of Debian's packages, and of headers from PyPI.
function(zerorun_install_licence name pattern)
  file(GLOB file ${pattern})
  if(file)
    install(FILES ${file} DESTINATION ${SKBUILD_METADATA_DIR}/licenses/third_party
      RENAME ${name}.txt COMPONENT runtime)
  endif()
endfunction()
foreach(package libcli11-dev libdnnl-dev libfmt-dev libgloo-dev libgomp1 libhiredis-dev libhwy-dev
    libibverbs-dev libnl-3-dev liburing-dev libxxhash-dev nlohmann-json3-dev ocl-icd-libopencl1)
  zerorun_install_licence(${package} /usr/share/doc/${package}/copyright)
endforeach()
zerorun_install_licence(pybind11
  ${pybind11_DIR}/../../../../pybind11-*.dist-info/licenses/LICENSE)
zerorun_install_licence(cudnn-frontend
  ${CUDNNFrontend_INCLUDE_DIR}/../nvidia_cudnn_frontend-*.dist-info/licenses/LICENSE.txt)

# What the wheel is made of, where tools look for it (PEP 770).
set(sbom ${CMAKE_CURRENT_BINARY_DIR}/zerorun.cdx.json)
execute_process(
  COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/sbom.py ${PROJECT_VERSION} ${zerorun_commit}
  OUTPUT_FILE ${sbom} COMMAND_ERROR_IS_FATAL ANY)
install(FILES ${sbom} DESTINATION ${SKBUILD_METADATA_DIR}/sboms COMPONENT runtime)
