// libzerorun_gloo.so's entry point.
#include "comm/gloo/backend.h"

#include <fmt/format.h>
#include <gloo/config.h>

#include "comm/gloo/links.h"

namespace zerorun {

namespace {

std::string describe_gloo() {
  return fmt::format("Gloo {}.{}.{}", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const GlooBackend* zerorun_gloo_backend() {
  static const GlooBackend backend = {build_id(), connect_with_gloo, describe_gloo};
  return &backend;
}

}  // namespace zerorun
