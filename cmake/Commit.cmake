# zerorun_commit: of which commit the sources are. `git archive` has written it into commit.txt;
# in a clone git tells, again after each commit.
file(READ ${CMAKE_CURRENT_LIST_DIR}/commit.txt zerorun_commit)
string(STRIP "${zerorun_commit}" zerorun_commit)
if(zerorun_commit MATCHES "Format:")
  execute_process(COMMAND git rev-parse HEAD --git-path logs/HEAD
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE told ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REPLACE "\n" ";" told "${told}")
  list(APPEND told "" "")
  list(GET told 0 zerorun_commit)
  list(GET told 1 log)
  cmake_path(ABSOLUTE_PATH log BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(zerorun_commit AND EXISTS ${log})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${log})
  endif()
endif()
if(NOT zerorun_commit)
  set(zerorun_commit unknown)
endif()
string(SUBSTRING "${zerorun_commit}" 0 12 zerorun_commit)
