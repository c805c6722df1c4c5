#pragma once

#include <optional>
#include <string>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"

namespace zerorun {

// Finds which parameter's gradient was not finite, and on which rank. It costs a pass over the
// gradient, so it is used only while the next overflow would end the training (the loss scale
// cannot become smaller).
class GradientInspector {
 public:
  explicit GradientInspector(const EngineContext& context);

  void watch(bool on) { watching_ = on; }
  // Examines this rank's own gradient of the bucket, before the reduction.
  void look_at(const Bucket& bucket, TensorView gradient);
  // Returns the message about the gradient that was not finite, and forgets it. Collective.
  std::string report(Stream& stream);

 private:
  struct Finding {
    ParameterId parameter = 0;
    bool nan = false;
    double largest_finite = 0.0;  // magnitude
  };
  bool is_finite(TensorView gradient);
  Finding examine(ParameterId parameter, TensorView gradient);

  const EngineContext& context_;
  Buffer words_;
  bool watching_ = false;
  std::optional<Finding> first_;  // of the lowest parameter
};

}  // namespace zerorun
