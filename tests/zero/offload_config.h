#pragma once

#include <algorithm>
#include <cstdint>

#include "tests/paths.h"
#include "zerorun/config.h"

namespace zerorun::testing {

inline Config base_config(int stage, DType dtype = DType::bf16, int64_t accumulation = 1) {
  Config config;
  config.batch.accumulation_steps = accumulation;
  config.precision.param_dtype = dtype;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 700;
  config.zero.param_persistence_threshold = 100;
  config.gradient_clipping = 0.05;
  return config;
}

// The same on the host, in chunks of a few hundred elements.
inline Config offloaded(Config config, double ratio = 1.0,
                        OffloadDevice device = OffloadDevice::cpu) {
  config.offload.optimizer.device = device;
  config.offload.optimizer.nvme_path = test_paths::build();
  config.offload.optimizer.ratio = ratio;
  config.offload.sub_group_size = device == OffloadDevice::cpu ? 300 : 1000;
  config.offload.aio.block_size = 4096;
  return config;
}

// The same with parameters on NVMe, all of them.
inline Config param_on_nvme(Config config) {
  config.offload.param.device = OffloadDevice::nvme;
  config.offload.param.nvme_path = test_paths::build();
  config.offload.param.max_in_cpu = 0;
  config.offload.aio.block_size = 4096;
  config.offload.sub_group_size = std::min<int64_t>(config.offload.sub_group_size, 300);
  return config;
}

}  // namespace zerorun::testing
