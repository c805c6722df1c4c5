#pragma once

#include <pybind11/pybind11.h>

#include <utility>
#include <vector>

#include "zerorun/engine.h"

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

}  // namespace zerorun
