#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun::testing {

// A bf16 engine at stage 2 whose values count up from `value` along each parameter.
inline std::unique_ptr<Engine> make_counted_engine(Device& device, Communicator& comm,
                                                   std::vector<ParameterSpec> specs, float value,
                                                   OffloadDevice home = OffloadDevice::none) {
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = DType::bf16;
  config.zero.stage = 2;
  config.offload.optimizer.device = home;
  auto engine = Engine::create(config, device, comm, std::move(specs), {ParameterGroup{}});
  engine->initialize_parameters([value](ParameterId id, int64_t begin, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = value + static_cast<float>((begin + static_cast<int64_t>(i) + id) % 977);
    }
  });
  return engine;
}

}  // namespace zerorun::testing
