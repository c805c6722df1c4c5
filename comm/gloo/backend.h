#pragma once

#include <memory>
#include <string>

#include "comm/links.h"
#include "core/build_id.h"

namespace zerorun {

// The entry point of libzerorun_gloo.so, a plugin (device/plugin.h) with Links over Gloo. It is a
// library of its own because its copy of Gloo exports the same symbols as PyTorch's copy.
struct GlooBackend {
  BuildId build;
  // Connects this rank to options.peers over TCP. Collective over the ranks that are peers of each
  // other. Throws CommError if a peer cannot be reached.
  std::unique_ptr<Links> (*connect)(const LinkOptions& options);
  // For `zerorun env`: Gloo's version.
  std::string (*describe)();
};
inline constexpr const char* kGlooBackendEntry = "zerorun_gloo_backend";
inline constexpr const char* kGlooLibrary = "libzerorun_gloo.so";

}  // namespace zerorun
