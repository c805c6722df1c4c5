# cudnn-frontend: headers only, as target zerorun_cudnn_frontend. Its PyPI package puts them straight
# into site-packages/include; they include NVRTC's header.
include(NvidiaLibrary)
include(FindPackageHandleStandardArgs)
file(GLOB sites ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages)
find_path(CUDNNFrontend_INCLUDE_DIR cudnn_frontend.h HINTS ${sites} PATH_SUFFIXES include)
find_nvidia_library(NVRTC nvrtc.h libnvrtc.so.${CUDAToolkit_VERSION_MAJOR}
  cu${CUDAToolkit_VERSION_MAJOR})
find_package_handle_standard_args(CUDNNFrontend
  REQUIRED_VARS CUDNNFrontend_INCLUDE_DIR NVRTC_INCLUDE_DIR)
if(CUDNNFrontend_FOUND AND NOT TARGET zerorun_cudnn_frontend)
  add_library(zerorun_cudnn_frontend INTERFACE)
  target_include_directories(zerorun_cudnn_frontend SYSTEM INTERFACE
    ${CUDNNFrontend_INCLUDE_DIR} ${NVRTC_INCLUDE_DIR})
endif()
