#pragma once

#include <chrono>
#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// Makes a store for ranks that share a host and have met already, on a port of its own. Collective.
std::shared_ptr<Store> make_host_store(Communicator& comm, Stream& stream,
                                       std::chrono::milliseconds timeout);

}  // namespace zerorun
