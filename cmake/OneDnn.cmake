# Debian's own package file for oneDNN asks for OpenCL's headers, which nothing here uses.
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(zerorun_dnnl INTERFACE)
target_include_directories(zerorun_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(zerorun_dnnl INTERFACE ${DNNL_LIBRARY})
