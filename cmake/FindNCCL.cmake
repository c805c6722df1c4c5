# NCCL: headers, as target zerorun_nccl. The library is opened at run time.
include(NvidiaLibrary)
include(FindPackageHandleStandardArgs)
find_nvidia_library(NCCL nccl.h libnccl.so.2 nccl)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_INCLUDE_DIR)
if(NCCL_FOUND AND NOT TARGET zerorun_nccl)
  add_library(zerorun_nccl INTERFACE)
  target_include_directories(zerorun_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
endif()
