# Headers of other projects are parsed once for each set of compiler flags, a quarter of the work of a
# cold build. Builds for other machines begin with a header of their own, and the preset `lint`
# compiles each source as it stands (CMAKE_DISABLE_PRECOMPILE_HEADERS), so a missing #include is found.
set(zerorun_common_headers
  <algorithm> <array> <atomic> <cerrno> <charconv> <chrono> <cmath> <condition_variable> <cstddef>
  <cstdint> <cstring> <deque> <exception> <filesystem> <fstream> <functional> <limits> <map> <memory>
  <mutex> <optional> <set> <span> <sstream> <string> <string_view> <system_error> <thread> <utility>
  <vector> <fmt/format.h> <fmt/ranges.h>)

# zerorun_precompile(TARGET HEADER...): besides the common ones. Sources with options of their own, as
# kernels have, go without.
function(zerorun_precompile target)
  if(ZERORUN_PORTABLE)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE ${zerorun_common_headers} ${ARGN})
  set_property(TARGET ${target} PROPERTY ZERORUN_PRECOMPILED ON)
endfunction()

# zerorun_reuse_precompiled(OWNER TARGET...): of targets that are compiled with the owner's flags.
function(zerorun_reuse_precompiled owner)
  get_target_property(precompiled ${owner} ZERORUN_PRECOMPILED)
  if(precompiled)
    foreach(target ${ARGN})
      target_precompile_headers(${target} REUSE_FROM ${owner})
    endforeach()
  endif()
endfunction()
