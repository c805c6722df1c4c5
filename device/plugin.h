#pragma once

#include <string>
#include <string_view>

#include "core/build_id.h"
#include "os/shared_library.h"

// Libraries of zerorun's own that are opened at run time, so that one build runs on machines with
// and without CUDA. They exchange C++ objects with the program, so both must be of one build. An
// entry point is a C function that returns a pointer to a constant struct, whose first member is
// the build that the library is of.
namespace zerorun {

// Opens the library: beside this code, in an installation's library folder seen from bin/ and
// libexec/zerorun/, in the build tree's lib/, or in an environment's lib/ seen from its Python
// packages. Throws DeviceError when it is missing there or cannot be opened.
SharedLibrary open_plugin(std::string_view name);

// Throws DeviceError that names both files unless `build` is this program's.
void check_plugin_build(const SharedLibrary& library, const BuildId& build);

template <typename Entry>
const Entry& plugin_entry(const SharedLibrary& library, const char* name) {
  const Entry& entry = *library.function<const Entry*()>(name)();
  check_plugin_build(library, entry.build);
  return entry;
}

}  // namespace zerorun
