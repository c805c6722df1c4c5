#pragma once

#include <chrono>
#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// Makes a store for the ranks of `comm`, which are on one host; it is served on a free port.
// Collective.
std::shared_ptr<Store> make_host_store(Communicator& comm, Stream& stream,
                                       std::chrono::milliseconds timeout);

}  // namespace zerorun
