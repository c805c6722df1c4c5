#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "python/bindings/engine_handle.h"
#include "python/bindings/tensor_exchange.h"
#include "zerorun/engine.h"

namespace zerorun {

// Carries gradients from autograd into the engine's buckets: one hook per parameter, called after
// autograd has accumulated into `.grad`, copies it (1 copy) and clears it.
//
// A parameter is complete when as many contributions came as in the last micro-step (at first one):
// reentrant checkpointing and several backward calls make more than one. A contribution that comes
// after its bucket was sent is late: it stays in `.grad` until collect_late().
class GradientCollector {
 public:
  // eager: buckets are sent as soon as they are complete. Else they wait for the end of the
  // micro-step, and no contribution is ever late.
  GradientCollector(std::shared_ptr<EngineOwner> owner, bool eager);

  // The hook of `parameter`, registered as its id.
  void on_gradient(ParameterId id, pybind11::handle parameter);

  // Contributions since the last end of a micro-step.
  bool open() const { return open_; }
  bool eager() const { return eager_; }
  // Ends the micro-step; true when a whole batch has been accumulated.
  bool end_micro_step();
  bool has_late() const { return !late_.empty(); }
  // One more micro-step for what came late on any rank; all ranks must call it.
  bool collect_late();
  // Forgets the gradients since the last step. Between micro-steps; all ranks must call it.
  void drop_batch();
  // The batch was stepped.
  void stepped() { batch_complete_ = false; }

 private:
  TensorView read(ParameterId id, pybind11::handle gradient);
  void contribute(ParameterId id, pybind11::handle parameter, pybind11::handle gradient);
  void begin_micro_step();
  // Waits or computes without the GIL.
  void write(ParameterId id, TensorView source, bool complete);

  std::shared_ptr<EngineOwner> owner_;
  const bool eager_;
  const pybind11::str grad_name_;
  TensorImporter importer_;
  bool open_ = false;
  bool batch_complete_ = false;
  std::vector<int> expected_;  // contributions per micro-step, by parameter
  std::vector<int> received_;  // in this micro-step
  std::vector<std::pair<ParameterId, pybind11::object>> late_;
};

}  // namespace zerorun
