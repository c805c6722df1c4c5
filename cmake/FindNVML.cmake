# NVML: its header, as target zerorun_nvml. The library comes with the driver and is opened at run time.
include(NvidiaLibrary)
include(FindPackageHandleStandardArgs)
find_nvidia_library(NVML nvml.h libnvidia-ml.so.1 cu${CUDAToolkit_VERSION_MAJOR})
find_package_handle_standard_args(NVML REQUIRED_VARS NVML_INCLUDE_DIR)
if(NVML_FOUND AND NOT TARGET zerorun_nvml)
  add_library(zerorun_nvml INTERFACE)
  target_include_directories(zerorun_nvml SYSTEM INTERFACE ${NVML_INCLUDE_DIR})
endif()
