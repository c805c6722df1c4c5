#pragma once

#include <cstdint>
#include <span>

#include "optim/optimizer.h"
#include "zero/stage.h"
#include "zerorun/communicator.h"
#include "zerorun/config.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"

namespace zerorun {

// The facts that follow from configuration, model, world size and rank and say how large the
// engine's memory is, before there is any.
struct Sharding {
  std::span<const ParameterSpec> specs;
  StagePolicy policy;
  ZeroConfig zero;
  OffloadConfig offload;
  DType param_dtype = DType::fp32;
  DType comm_dtype = DType::fp32;   // of gradients on their way
  DType accum_dtype = DType::fp32;  // of reduced gradients
  double pre_scale = 1.0;           // what each rank multiplies its gradient with before the sum
  int64_t accumulation_steps = 1;
  bool share_parameters = true;
  bool master_is_param = false;
  int64_t parameter_alignment = 1;  // of parameters within their bucket, at least
  int world_size = 1;
  int rank = 0;
  bool computes_on_host = true;  // on CPU ranks

  // fp32 masters beside parameters of 16 bits.
  bool separate_master() const { return param_dtype != DType::fp32 && !master_is_param; }
  // A part of the states and of the reduced gradients is stored on the host.
  bool offloads_states() const {
    return offload.optimizer.device != OffloadDevice::none && offload.optimizer.ratio > 0;
  }
  // Shards of parameters are stored off the device and copied to it when they are gathered. CPU
  // ranks gather from their host's memory in place.
  bool moves_parameters() const {
    return policy.shard_params &&
           (offload.param.device == OffloadDevice::nvme ||
            (offload.param.device == OffloadDevice::cpu && !computes_on_host));
  }
  DType master_dtype() const { return separate_master() ? DType::fp32 : param_dtype; }
};

// True when the reduced gradient replaces the gradient that it was made from: below stage 2, with
// one micro-step and one dtype.
bool reduces_in_place(const Sharding& sharding);

// The facts and services that every part of the engine needs; constant after construction.
struct EngineContext : Sharding {
  Device& device;
  Communicator& comm;
};

// Throws ConfigError for dtypes, stages and places to offload to that contradict each other.
Sharding make_sharding(const Config& config, std::span<const ParameterSpec> specs,
                       const Optimizer& rule, int world_size, int rank, bool computes_on_host);

}  // namespace zerorun
