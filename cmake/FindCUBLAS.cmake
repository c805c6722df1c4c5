# cuBLAS and cuBLASLt: headers, as target zerorun_cublas. The library is opened at run time.
include(NvidiaLibrary)
include(FindPackageHandleStandardArgs)
find_nvidia_library(CUBLAS cublas_v2.h libcublas.so.${CUDAToolkit_VERSION_MAJOR} cu${CUDAToolkit_VERSION_MAJOR})
find_package_handle_standard_args(CUBLAS REQUIRED_VARS CUBLAS_INCLUDE_DIR)
if(CUBLAS_FOUND AND NOT TARGET zerorun_cublas)
  add_library(zerorun_cublas INTERFACE)
  target_include_directories(zerorun_cublas SYSTEM INTERFACE ${CUBLAS_INCLUDE_DIR})
endif()
