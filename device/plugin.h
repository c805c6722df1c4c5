#pragma once

#include <string_view>

#include "core/build_id.h"
#include "os/shared_library.h"

// Plugins: libraries of zerorun that are opened at run time, so that one build runs on machines
// with and without CUDA. They exchange C++ objects with the program, so both must come from the
// same build. An entry point is a C function that returns a pointer to a constant struct, whose
// first member is the BuildId of the library.
namespace zerorun {

// Opens a plugin. Searches the folder of this code, the library folder of the installation
// (relative to bin/ and libexec/zerorun/), lib/ of the build tree, and lib/ of the environment
// (relative to its Python packages). Throws DeviceError if it is not found or cannot be opened.
SharedLibrary open_plugin(std::string_view name);

// Throws DeviceError that names both files unless `build` is the build of this program.
void check_plugin_build(const SharedLibrary& library, const BuildId& build);

template <typename Entry>
const Entry& plugin_entry(const SharedLibrary& library, const char* name) {
  const Entry& entry = *library.function<const Entry*()>(name)();
  check_plugin_build(library, entry.build);
  return entry;
}

}  // namespace zerorun
