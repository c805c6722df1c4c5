# One backend for the drivers of CUDA 12 (525 and later) and of CUDA 13, where nvcc is of CUDA 13: its front
# ends, with CUDA 12's assembler, headers and static runtime from PyPI (requirements-cuda.txt). Drivers of
# CUDA 12 load neither CUDA 13's runtime nor the code that its ptxas writes; newer drivers run all of 12's.
#
# nvcc finds its tools and headers through the nvcc.profile of the folder that it is called from, so the
# build has such a folder. Sets ZERORUN_CUDA12 (a version, or empty), CMAKE_CUDA_COMPILER to the nvcc in
# that folder, ZERORUN_CUDA12_ASSEMBLER (a version), zerorun_cuda12_include and zerorun_cuda12_runtime.
set(ZERORUN_CUDA_DRIVERS AUTO CACHE STRING
  "Drivers that nvcc 13's code runs on: 12 (525 and later; needs CUDA 12's packages of PyPI), 13, or AUTO")
set(ZERORUN_CUDA12 "")
if(NOT ZERORUN_CUDA_DRIVERS MATCHES "^(AUTO|12|13)$")
  message(FATAL_ERROR "ZERORUN_CUDA_DRIVERS is '${ZERORUN_CUDA_DRIVERS}': expected AUTO, 12 or 13")
endif()
set(zerorun_nvcc ${CMAKE_CUDA_COMPILER})
if(NOT zerorun_nvcc AND DEFINED ENV{CUDACXX})
  set(zerorun_nvcc $ENV{CUDACXX})
endif()
set(folder ${CMAKE_BINARY_DIR}/cuda12)
if(ZERORUN_CUDA_DRIVERS STREQUAL "13" AND zerorun_nvcc STREQUAL ${folder}/bin/nvcc)
  message(FATAL_ERROR "this build folder has begun for drivers of CUDA 12: empty it")
endif()
if(ZERORUN_CUDA_DRIVERS STREQUAL "13" OR NOT zerorun_nvcc)
  return()
endif()
# The toolkit around nvcc, which may be called by a script or a link.
execute_process(COMMAND ${zerorun_nvcc} -v zerorun_no_file OUTPUT_VARIABLE said ERROR_VARIABLE said)
execute_process(COMMAND ${zerorun_nvcc} --version OUTPUT_VARIABLE version ERROR_QUIET)
if(NOT said MATCHES "#\\$ TOP=([^\r\n]+)" OR NOT version MATCHES "release 13\\.")
  if(ZERORUN_CUDA_DRIVERS STREQUAL "12" AND NOT version MATCHES "release 12\\.")
    message(FATAL_ERROR "ZERORUN_CUDA_DRIVERS is 12, but ${zerorun_nvcc} is not of CUDA 12 or 13")
  endif()
  return()
endif()
string(REGEX MATCH "#\\$ TOP=([^\r\n]+)" line "${said}")
file(REAL_PATH ${CMAKE_MATCH_1} toolkit)

include(NvidiaLibrary)
find_nvidia_sites(cuda_runtime)
find_file(ZERORUN_CUDA12_RUNTIME libcudart_static.a PATHS ${sites} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_nvidia_sites(cuda_nvcc)
find_file(ZERORUN_CUDA12_PTXAS ptxas PATHS ${sites} PATH_SUFFIXES bin NO_DEFAULT_PATH)
mark_as_advanced(ZERORUN_CUDA12_RUNTIME ZERORUN_CUDA12_PTXAS)
if(NOT ZERORUN_CUDA12_RUNTIME OR NOT ZERORUN_CUDA12_PTXAS)
  set(advice "install nvidia-cuda-runtime-cu12 and nvidia-cuda-nvcc-cu12 with pip into .venv")
  if(ZERORUN_CUDA_DRIVERS STREQUAL "12")
    message(FATAL_ERROR "ZERORUN_CUDA_DRIVERS is 12, but CUDA 12's packages are missing: ${advice}")
  endif()
  message(STATUS "CUDA: this build needs a driver of CUDA 13 (580); for those of CUDA 12, ${advice}")
  return()
endif()
cmake_path(GET ZERORUN_CUDA12_RUNTIME PARENT_PATH libraries)
cmake_path(GET libraries PARENT_PATH package)
set(zerorun_cuda12_runtime ${ZERORUN_CUDA12_RUNTIME})
set(zerorun_cuda12_include ${package}/include)
# crt/, which the compiler's own output includes as well: there it is that of CUDA 13.
cmake_path(GET ZERORUN_CUDA12_PTXAS PARENT_PATH package)
cmake_path(GET package PARENT_PATH package)
# Of the C++ library of CUDA headers ask for a macro.
list(APPEND zerorun_cuda12_include ${package}/include ${toolkit}/include/cccl)
file(STRINGS ${libraries}/../include/cuda_runtime_api.h line REGEX "define CUDART_VERSION ")
string(REGEX MATCH "([0-9]+)0([0-9])0" line "${line}")
set(ZERORUN_CUDA12 ${CMAKE_MATCH_1}.${CMAKE_MATCH_2})
foreach(turn 1 2)
  execute_process(COMMAND ${ZERORUN_CUDA12_PTXAS} --version OUTPUT_VARIABLE version
    RESULT_VARIABLE failed ERROR_QUIET)
  if(failed EQUAL 0)
    break()
  endif()
  # Some installers leave it without the permission to run.
  file(CHMOD ${ZERORUN_CUDA12_PTXAS} PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
endforeach()
string(REGEX MATCH "release ([0-9.]+)" line "${version}")
set(ZERORUN_CUDA12_ASSEMBLER ${CMAKE_MATCH_1})

file(MAKE_DIRECTORY ${folder}/bin)
foreach(part nvcc crt)
  file(CREATE_LINK ${toolkit}/bin/${part} ${folder}/bin/${part} SYMBOLIC)
endforeach()
file(CONFIGURE OUTPUT ${folder}/bin/nvcc.profile @ONLY CONTENT
[[TOP = @toolkit@
CICC_PATH = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += @folder@/bin:$(CICC_PATH):$(TOP)/bin:
INCLUDES += "-I@libraries@/../include" "-I$(TOP)/$(_TARGET_DIR_)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L@libraries@"
]])
configure_file(${CMAKE_CURRENT_LIST_DIR}/ptxas12.in ${folder}/bin/ptxas @ONLY
  FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
# A build tree that began with another nvcc looks at this one anew.
if(NOT "$CACHE{CMAKE_CUDA_COMPILER}" STREQUAL "${folder}/bin/nvcc")
  unset(CMAKE_CUDA_COMPILER CACHE)
  file(GLOB known ${CMAKE_BINARY_DIR}/CMakeFiles/*/CMakeCUDACompiler.cmake)
  file(REMOVE ${known} no_file)
endif()
set(CMAKE_CUDA_COMPILER ${folder}/bin/nvcc CACHE FILEPATH "nvcc" FORCE)
set(CMAKE_CUDA_COMPILER ${folder}/bin/nvcc)
# zstd, nvcc 13's choice, came with the drivers of CUDA 12.4.
# cuBLAS's headers, of CUDA 13, use more of this header than CUDA 12's has.
set(zerorun_cuda12_options
  $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=speed>
  "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${toolkit}/include/library_types.h>")
