# The source of core/build_id.h: a hash of the core library's sources, the compiler and its options.
# Written at build time, and only when it changes, so that only that one file is compiled again.
#
# As a script (-P) it writes OUTPUT, given a file with the SOURCES' paths and the SETTINGS.
if(CMAKE_SCRIPT_MODE_FILE)
  file(STRINGS ${SOURCES} sources)
  set(hashes "${SETTINGS}")
  foreach(source ${sources})
    file(MD5 ${source} hash)
    string(APPEND hashes ${hash})
  endforeach()
  string(MD5 id "${hashes}")
  set(text "#include \"core/build_id.h\"\n
zerorun::BuildId zerorun::build_id() { return {\"${id}\"}; }\n")
  if(EXISTS ${OUTPUT})
    file(READ ${OUTPUT} old)
  endif()
  if(NOT text STREQUAL "${old}")
    file(WRITE ${OUTPUT} "${text}")
  endif()
  return()
endif()

# `folders` are those whose sources go into every program, or are the interface of a plugin.
function(zerorun_add_build_id target)
  list(TRANSFORM ARGN APPEND "/*.h" OUTPUT_VARIABLE patterns)
  foreach(suffix cc cu)
    list(TRANSFORM ARGN APPEND "/*.${suffix}" OUTPUT_VARIABLE more)
    list(APPEND patterns ${more})
  endforeach()
  file(GLOB_RECURSE sources LIST_DIRECTORIES false ${patterns})
  list(SORT sources)
  list(JOIN sources "\n" lines)
  set(list ${CMAKE_CURRENT_BINARY_DIR}/build_id_sources.txt)
  file(CONFIGURE OUTPUT ${list} CONTENT "${lines}\n" @ONLY)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  string(MD5 settings "${PROJECT_VERSION} ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} \
${CMAKE_SYSTEM_PROCESSOR} ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}} ${ZERORUN_SANITIZE} \
${ZERORUN_HAVE_CUDA} ${CMAKE_CUDA_COMPILER_VERSION} ${ZERORUN_CUDA12}")
  set(output ${CMAKE_CURRENT_BINARY_DIR}/build_id.cc)
  set(script ${CMAKE_CURRENT_FUNCTION_LIST_FILE})
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DSOURCES=${list} -DSETTINGS=${settings} -P ${script}
    DEPENDS ${sources} ${list} ${script} COMMENT "Hashing the sources of this build" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
