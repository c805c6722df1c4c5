#pragma once

#include <memory>
#include <string>

#include "comm/links.h"
#include "core/build_id.h"

namespace zerorun {

// The connections of libzerorun_gloo.so, a plugin (device/plugin.h): Gloo's, whose functions have
// the names of those in PyTorch's copy, so they are kept in a library of their own.
struct GlooBackend {
  BuildId build;
  // Collective. Throws CommError when a peer cannot be reached.
  std::unique_ptr<Links> (*connect)(const LinkOptions& options);
  // For `zerorun env`: the version.
  std::string (*describe)();
};
inline constexpr const char* kGlooBackendEntry = "zerorun_gloo_backend";
inline constexpr const char* kGlooLibrary = "libzerorun_gloo.so";

}  // namespace zerorun
