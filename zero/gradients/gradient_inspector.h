#pragma once

#include <optional>
#include <string>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"

namespace zerorun {

// Says which parameter's gradient was not finite, and on which rank. Looking costs a pass over the
// gradient, so it only happens while the next overflow would end the training.
class GradientInspector {
 public:
  explicit GradientInspector(const EngineContext& context);

  void watch(bool on) { watching_ = on; }
  // Looks at this rank's own gradient of the bucket, before it is reduced.
  void look_at(const Bucket& bucket, TensorView gradient);
  // Tells what the user should know about a gradient that was not finite, and forgets it.
  // Collective.
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
  std::optional<Finding> first_;  // lowest parameter
};

}  // namespace zerorun
