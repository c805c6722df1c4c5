# cuDNN: headers, as target zerorun_cudnn. The library is opened at run time.
include(NvidiaLibrary)
include(FindPackageHandleStandardArgs)
find_nvidia_library(CUDNN cudnn.h libcudnn.so.9 cudnn)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_INCLUDE_DIR)
if(CUDNN_FOUND AND NOT TARGET zerorun_cudnn)
  add_library(zerorun_cudnn INTERFACE)
  target_include_directories(zerorun_cudnn SYSTEM INTERFACE ${CUDNN_INCLUDE_DIR})
endif()
