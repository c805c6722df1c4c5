# Compiler settings of every target, carried by the interface library zerorun_options.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(zerorun_options INTERFACE)
# -ffp-contract=off: the same formula gives the same bits on every instruction set.
# Designated initialisers leave members at their defaults on purpose. GCC 12's -Wrestrict and
# -Wmaybe-uninitialized report std::string itself (GCC bug 105329).
set(warnings -Wall -Wextra -Wshadow -Wnon-virtual-dtor -ffp-contract=off
  -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND warnings -Wno-restrict -Wno-maybe-uninitialized)
endif()
target_compile_options(zerorun_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
# For other machines: messages name sources without the folder that they were built in, and older C++
# libraries suffice. As a rule for wheels.
set(portable OFF)
if(SKBUILD)  # a version's number, which option() would take for OFF
  set(portable ON)
endif()
option(ZERORUN_PORTABLE "Build for other machines" ${portable})
if(ZERORUN_PORTABLE)
  # Also where ccache has made the paths of sources relative to the build's folder (CCACHE_BASEDIR).
  cmake_path(RELATIVE_PATH PROJECT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_BINARY_DIR} OUTPUT_VARIABLE up)
  set(zerorun_prefix_map -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/= -fmacro-prefix-map=${up}/=)
  # The linker leaves out functions and data that a program or library does not use.
  target_compile_options(zerorun_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:${zerorun_prefix_map};-ffunction-sections;-fdata-sections>")
  target_link_options(zerorun_options INTERFACE LINKER:--gc-sections)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(zerorun_options INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${PROJECT_SOURCE_DIR}/cmake/older_libstdcxx.h>")
  endif()
endif()
# Highway's kernels are compiled once per instruction set: for x86-64, AVX2 and AVX-512, or Arm's. CPUs
# between the first two run what every x86-64 does.
target_compile_definitions(zerorun_options INTERFACE "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4)")

# In a release build -O3 is for kernels. What only calls them takes as long with -O1, and compiles in
# half the time.
set(zerorun_plain_options $<$<CONFIG:Release>:-O1>)
set(zerorun_kernel_options $<$<CONFIG:Release>:-O3>)
# For code that need not be fast: command lines and configurations. -Og takes a sixth off the time of
# -O1; -O0 takes no more off, as it emits all that inlining removes.
set(zerorun_light_options $<IF:$<BOOL:${ZERORUN_SANITIZE}>,-O0,-Og>)
# References in tests compute a lot. Where its header is precompiled, GCC 12 reports std::string itself
# (bug 105329).
set(zerorun_test_options $<IF:$<BOOL:${ZERORUN_SANITIZE}>,-O0,-O1>
  "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow>")

if(ZERORUN_SANITIZE STREQUAL "address")
  # Left out: what AddressSanitizer finds as well, at half the compile time of the whole set.
  target_compile_options(zerorun_options INTERFACE
    -fsanitize=address,undefined -fno-sanitize=null,object-size,pointer-overflow,vptr
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(zerorun_options INTERFACE -fsanitize=address,undefined)
elseif(ZERORUN_SANITIZE STREQUAL "thread")
  target_compile_options(zerorun_options INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(zerorun_options INTERFACE -fsanitize=thread)
elseif(ZERORUN_SANITIZE)
  message(FATAL_ERROR "ZERORUN_SANITIZE is '${ZERORUN_SANITIZE}': expected address, thread or empty")
endif()

# libgomp is not instrumented, so ThreadSanitizer builds run loops serially (core/parallel.h).
if(NOT ZERORUN_SANITIZE STREQUAL "thread")
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  target_link_libraries(zerorun_options INTERFACE OpenMP::OpenMP_CXX)
endif()
