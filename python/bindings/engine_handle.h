#pragma once

#include <memory>
#include <utility>

#include "zerorun/communicator.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"
#include "zerorun/error.h"

namespace zerorun {

// An engine with what it stands on. Tensors that view its memory share it, so the memory outlives
// the engine's Python object for as long as one of them is there.
struct EngineOwner {
  std::shared_ptr<Device> device;
  std::shared_ptr<Communicator> comm;
  std::unique_ptr<Engine> engine;  // destroyed first
};

// Python's reference to an engine; empty once it was closed.
class EngineHandle {
 public:
  explicit EngineHandle(std::shared_ptr<EngineOwner> owner) : owner_(std::move(owner)) {}

  const std::shared_ptr<EngineOwner>& owner() const {
    if (owner_ == nullptr) {
      throw ConfigError("the engine is used after destroy(); make another with initialize");
    }
    return owner_;
  }
  Engine& engine() const { return *owner()->engine; }
  bool closed() const { return owner_ == nullptr; }
  void close() { owner_.reset(); }

 private:
  std::shared_ptr<EngineOwner> owner_;
};

}  // namespace zerorun
