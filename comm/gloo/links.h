#pragma once

#include <memory>

#include "comm/links.h"

namespace zerorun {

// Connects this rank to options.peers over TCP, with Gloo. Collective over the ranks that are peers
// of each other. Throws CommError if a peer cannot be reached.
std::unique_ptr<Links> connect_with_gloo(const LinkOptions& options);

}  // namespace zerorun
