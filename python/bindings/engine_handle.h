#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "python/bindings/gpu.h"
#include "python/bindings/tensor_exchange.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"
#include "zerorun/error.h"

namespace zerorun {

// Gradients that hooks brought and the engine has not been given, with the tensors they are in. On
// a GPU those of a bucket go together: one copy, for which the GIL is let go of once.
class PendingGradients {
 public:
  bool empty() const { return gradients_.empty(); }
  bool has(ParameterId id) const { return !empty() && at(noted_, id); }

  // Returns true when the bucket's gradients are all here. Not for a parameter that is here.
  bool add(const Contribution& gradient, pybind11::object tensor, const GradientBucket& bucket) {
    gradients_.push_back(gradient);
    tensors_.push_back(std::move(tensor));
    slot(noted_, gradient.parameter) = 1;
    return ++slot(of_bucket_, bucket.index) >= bucket.parameters;
  }

  // With the GIL.
  void give_to(Engine& engine) {
    if (empty()) return;
    const PendingGradients given = std::exchange(*this, {});
    const pybind11::gil_scoped_release release;
    engine.hooks().contribute(given.gradients_);
  }

 private:
  static bool at(const std::vector<int>& of, int64_t index) {
    return static_cast<size_t>(index) < of.size() && of[static_cast<size_t>(index)] != 0;
  }
  static int& slot(std::vector<int>& of, int64_t index) {
    if (static_cast<size_t>(index) >= of.size()) of.resize(static_cast<size_t>(index) + 1, 0);
    return of[static_cast<size_t>(index)];
  }

  std::vector<Contribution> gradients_;
  std::vector<pybind11::object> tensors_;
  std::vector<int> noted_;      // by parameter: 1 if it is here
  std::vector<int> of_bucket_;  // by bucket: how many are here
};

// An engine with what it stands on. Tensors that view its memory share it, so the memory outlives
// the engine's Python object for as long as one of them is there.
struct EngineOwner {
  EngineOwner() = default;
  EngineOwner(const EngineOwner&) = delete;
  EngineOwner& operator=(const EngineOwner&) = delete;
  // pybind11 throws only before the module is there.
  ~EngineOwner() {  // NOLINT(bugprone-exception-escape)
    if (!pending.empty() && Py_IsInitialized() != 0) {
      const pybind11::gil_scoped_acquire acquire;
      pending = {};
    }
    const WithoutGil unlocked;
    // The tensor library's kernels may still use the memory that goes now.
    if (gpu != nullptr) gpu->drain();
    engine.reset();
  }

  // The engine, whose work from here on takes its place on the tensor library's current stream.
  // With the GIL.
  Engine& enter() {
    if (gpu == nullptr) return *engine;
    // What was computed on another stream is copied there, before its memory is used again.
    if (!pending.empty() && !gpu->is_followed()) settle();
    gpu->follow();
    return *engine;
  }
  // Gives the engine the gradients that hooks have brought: before all that depends on them. With
  // the GIL.
  void settle() { pending.give_to(*engine); }
  // The place of the engine's memory, but for what is offloaded.
  dlpack::Device where() const { return gpu == nullptr ? kHost : gpu->where(); }

  std::shared_ptr<Gpu> gpu;  // null on the CPU
  std::shared_ptr<Device> device;
  std::shared_ptr<Communicator> comm;
  std::shared_ptr<Communicator> job;                 // of all that step together
  std::shared_ptr<Communicator> tensor;              // as EngineGroups::tensor
  std::vector<std::shared_ptr<Communicator>> parts;  // as EngineGroups::parts
  Config config;
  std::unique_ptr<Engine> engine;
  PendingGradients pending;  // empty on the CPU
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
  Engine& engine() const {
    owner()->settle();
    return *owner()->engine;
  }
  Engine& enter() const {
    owner()->settle();
    return owner()->enter();
  }
  bool closed() const { return owner_ == nullptr; }
  void close() { owner_.reset(); }

 private:
  std::shared_ptr<EngineOwner> owner_;
};

// Calls `work` with the engine and without the GIL, and returns its result.
template <typename Work>
auto unlocked(const EngineHandle& handle, const Work& work) {
  Engine& engine = handle.enter();
  const pybind11::gil_scoped_release release;
  return work(engine);
}

// A StateInterval whose views keep their engine alive.
struct OwnedInterval {
  StateInterval interval;
  std::shared_ptr<EngineOwner> owner;

  // Master, gradient and states; and the parameter.
  dlpack::Device where() const { return interval.on_host ? kHost : owner->where(); }
  dlpack::Device where_param() const { return interval.param_on_host ? kHost : owner->where(); }
  std::optional<pybind11::capsule> export_if(TensorView view) const {
    if (view.data == nullptr) return std::nullopt;
    return export_view(view, owner, where());
  }
};

inline std::vector<OwnedInterval> own(std::span<const StateInterval> intervals,
                                      const std::shared_ptr<EngineOwner>& owner) {
  std::vector<OwnedInterval> result;
  for (const StateInterval& interval : intervals) result.push_back({interval, owner});
  return result;
}

}  // namespace zerorun
