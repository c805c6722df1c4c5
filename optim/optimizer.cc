#include "optim/optimizer.h"

#include <algorithm>
#include <cctype>

#include "core/check.h"
#include "optim/adam.h"
#include "optim/external.h"

namespace zerorun {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config) {
  if (config.type == kExternalOptimizer) return std::make_unique<ExternalOptimizer>();
  std::string type = config.type;
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // As DeepSpeed (runtime/engine.py, _configure_basic_optimizer): "AdamW" is always decoupled,
  // "Adam" unless adam_w_mode is false.
  if (type == "adamw" || (type == "adam" && config.adam_w_mode)) {
    return std::make_unique<Adam>(config, Adam::Decay::decoupled);
  }
  if (type == "adam") return std::make_unique<Adam>(config, Adam::Decay::l2);
  fail<ConfigError>("optimizer.type: got '{}', expected 'Adam' or 'AdamW'", config.type);
}

}  // namespace zerorun
