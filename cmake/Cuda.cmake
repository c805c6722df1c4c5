# The CUDA compiler and what every .cu file is compiled with. Sets ZERORUN_HAVE_CUDA.
set(ZERORUN_CUDA AUTO CACHE STRING
  "Build the CUDA backend: AUTO (where nvcc and NVIDIA's driver are), ON or OFF")
set(ZERORUN_CUDA_ARCHITECTURES "80;86;89;90;100;120" CACHE STRING
  "GPU architectures to compile for; PTX of the last one lets later GPUs run too")
set(ZERORUN_HAVE_CUDA OFF)
if(NOT ZERORUN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "ZERORUN_CUDA is '${ZERORUN_CUDA}': expected AUTO, ON or OFF")
endif()
# Sanitizers watch host code; the backend's runs under them in tests/cuda, on a fake of CUDA.
if(ZERORUN_CUDA STREQUAL "OFF" OR ZERORUN_SANITIZE)
  return()
endif()
if(ZERORUN_CUDA STREQUAL "AUTO")
  file(GLOB driver /dev/nvidia[0-9]* /dev/dxg /proc/driver/nvidia/version)
  find_program(nvidia_smi nvidia-smi NO_CACHE)
  if(NOT driver AND NOT nvidia_smi)
    message(STATUS "CUDA: no NVIDIA driver, so this build has CPU ranks only; "
      "-DZERORUN_CUDA=ON builds for other machines")
    return()
  endif()
endif()

if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(nvcc nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin NO_CACHE)
  if(nvcc)
    set(CMAKE_CUDA_COMPILER ${nvcc})
  endif()
endif()
include(Cuda12)
set(architecture "([89][0-9]|[1-9][0-9][0-9])[af]?")
if(NOT ZERORUN_CUDA_ARCHITECTURES MATCHES "^${architecture}(;${architecture})*$")
  message(FATAL_ERROR "ZERORUN_CUDA_ARCHITECTURES is '${ZERORUN_CUDA_ARCHITECTURES}': expected "
    "compute capabilities from 80 on, with a semicolon between them: 80;90")
endif()
list(GET ZERORUN_CUDA_ARCHITECTURES -1 last)
list(TRANSFORM ZERORUN_CUDA_ARCHITECTURES APPEND -real OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
list(APPEND CMAKE_CUDA_ARCHITECTURES ${last}-virtual)
if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
  enable_language(CUDA)
  if(ZERORUN_CUDA12 AND NOT CMAKE_CUDA_COMPILER STREQUAL ${CMAKE_BINARY_DIR}/cuda12/bin/nvcc)
    message(FATAL_ERROR "this build folder has begun with ${CMAKE_CUDA_COMPILER}: empty it")
  endif()
elseif(ZERORUN_CUDA STREQUAL "ON")
  message(FATAL_ERROR "ZERORUN_CUDA is ON, but there is no nvcc on the path or in /usr/local/cuda")
else()
  message(STATUS "CUDA: no nvcc, so this build has CPU ranks only")
  return()
endif()

find_package(CUDAToolkit REQUIRED)
find_package(CUBLAS)
find_package(NCCL)
if(NOT CUBLAS_FOUND OR NOT NCCL_FOUND)
  set(advice "install them, or nvidia-cublas and nvidia-nccl-cu13 with pip into .venv")
  if(ZERORUN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ZERORUN_CUDA is ON, but cuBLAS or NCCL headers are missing: ${advice}")
  endif()
  message(STATUS "CUDA: cuBLAS or NCCL headers are missing, so this build has CPU ranks only: ${advice}")
  return()
endif()
set(ZERORUN_HAVE_CUDA ON)
find_package(CUDNN)
find_package(NVML)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" zerorun_cuda_version "${CMAKE_CUDA_COMPILER_VERSION}")
if(ZERORUN_CUDA12)
  set(zerorun_cuda_version ${ZERORUN_CUDA12})
endif()
message(STATUS "CUDA: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${ZERORUN_CUDA_ARCHITECTURES} and PTX, "
  "with the runtime of ${zerorun_cuda_version}")

if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)

# Code that names CUDA links this: host files (.cc) and kernels (.cu) alike. The runtime is linked
# statically; see ARCHITECTURE.md, "One copy of each CUDA library".
add_library(zerorun_cuda_options INTERFACE)
target_compile_options(zerorun_cuda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow,-ffp-contract=off>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-missing-field-initializers>")
if(CMAKE_COMPILE_WARNING_AS_ERROR)  # CMake's own flag reaches nvcc, not the host's compiler below it
  target_compile_options(zerorun_cuda_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror>)
endif()
if(ZERORUN_PORTABLE)
  target_compile_options(zerorun_cuda_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${zerorun_prefix_map}>)
endif()
if(ZERORUN_CUDA12)
  # Besides, ccache sees no change of the assembler.
  target_compile_options(zerorun_cuda_options INTERFACE ${zerorun_cuda12_options})
  target_compile_definitions(zerorun_cuda_options INTERFACE ZERORUN_CUDA_ASSEMBLER=${ZERORUN_CUDA12})
  target_include_directories(zerorun_cuda_options SYSTEM BEFORE INTERFACE ${zerorun_cuda12_include})
  target_link_libraries(zerorun_cuda_options INTERFACE
    ${zerorun_cuda12_runtime} Threads::Threads ${CMAKE_DL_LIBS} rt)
else()
  target_link_libraries(zerorun_cuda_options INTERFACE CUDA::cudart_static)
endif()
