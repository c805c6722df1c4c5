#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "python/bindings/engine_handle.h"
#include "python/bindings/tensor_exchange.h"
#include "zerorun/engine.h"

namespace zerorun {

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

std::vector<OwnedInterval> own(std::span<const StateInterval> intervals,
                               const std::shared_ptr<EngineOwner>& owner);

}  // namespace zerorun
