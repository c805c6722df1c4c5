#pragma once

#include <memory>

#include "comm/links.h"

namespace zerorun {

// Collective: each rank connects to its peers.
std::unique_ptr<Links> connect_with_gloo(const LinkOptions& options);

}  // namespace zerorun
