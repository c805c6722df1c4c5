# find_nvidia_sites(wheel): sets `sites` to the folders of a PyPI package of NVIDIA's, whose own folder is
# site-packages/nvidia/<wheel>, wherever it may be installed.
function(find_nvidia_sites wheel)
  file(GLOB sites ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages)
  if(Python_EXECUTABLE)
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('platlib'))"
      OUTPUT_VARIABLE site OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(PREPEND sites ${site})
  endif()
  list(TRANSFORM sites APPEND /nvidia/${wheel})
  set(sites ${sites} PARENT_SCOPE)
endfunction()

# find_nvidia_library(NAME header soname wheel): looks for a library of NVIDIA's in the CUDA toolkit,
# the system, and the PyPI package whose folder is site-packages/nvidia/<wheel>, in that order. Sets
# NAME_INCLUDE_DIR and NAME_LIBRARY; the library may be missing where only headers are installed. For
# a wheel, which is used on other machines, NAME_LIBRARY is where the toolkit has it as a rule.
function(find_nvidia_library name header soname wheel)
  find_nvidia_sites(${wheel})
  # The first of: toolkit, system (the default search), PyPI.
  find_path(${name}_INCLUDE_DIR ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(${name}_INCLUDE_DIR ${header} PATHS ${sites} PATH_SUFFIXES include NO_DEFAULT_PATH)
  find_library(${name}_LIBRARY ${soname} HINTS ${CUDAToolkit_LIBRARY_DIR})
  find_library(${name}_LIBRARY ${soname} PATHS ${sites} PATH_SUFFIXES lib NO_DEFAULT_PATH)
  mark_as_advanced(${name}_INCLUDE_DIR ${name}_LIBRARY)
  if(SKBUILD)
    set(${name}_LIBRARY /usr/local/cuda/lib64/${soname} PARENT_SCOPE)
  endif()
endfunction()
