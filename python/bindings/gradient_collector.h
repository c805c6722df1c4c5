#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "python/bindings/engine_handle.h"
#include "python/bindings/tensor_exchange.h"
#include "zerorun/engine.h"

namespace zerorun {

// Hands autograd's gradients to an engine: one hook per parameter, called after autograd has
// accumulated into `.grad`, takes it from there; on a CPU the engine copies it at once, on a GPU
// with the others of its bucket. What a contribution means for the micro-step is the engine's
// affair.
class GradientCollector {
 public:
  explicit GradientCollector(std::shared_ptr<EngineOwner> owner);

  // The hook of `parameter`, which the engine knows as `id`. The engine waits and computes without
  // the GIL.
  void on_gradient(ParameterId id, pybind11::handle parameter);

 private:
  TensorView read(ParameterId id, pybind11::handle gradient);

  std::shared_ptr<EngineOwner> owner_;
  const pybind11::str grad_name_;
  TensorImporter importer_;
};

}  // namespace zerorun
