#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/zero/virtual_clock.h"
#include "tests/zero/wrapped_communicator.h"
#include "zerorun/engine.h"

namespace zerorun::testing {

struct CollectiveSeconds {
  double gather = 0.0;
  double reduce_scatter = 0.0;
};

// Collectives that take a time on their stream. As with NCCL no rank reads its peers' memory, and
// the calls of a communicator happen one after the other, whatever their streams.
class TimedCollectives final : public WrappedCommunicator {
 public:
  template <typename Inner>
  TimedCollectives(Inner&& inner, CollectiveSeconds seconds)
      : WrappedCommunicator(std::forward<Inner>(inner)), seconds_(seconds) {}

  Event all_gather(TensorView in, TensorView out, Sync /*sync*/, Stream& stream,
                   std::string_view label) override {
    stream.wait(last_);
    WrappedCommunicator::all_gather(in, out, Sync::collective, stream, label);
    return pass(stream, seconds_.gather);
  }
  Event reduce_scatter(TensorView in, TensorView out, Output output, Stream& stream,
                       std::string_view label) override {
    stream.wait(last_);
    WrappedCommunicator::reduce_scatter(in, out, output, stream, label);
    return pass(stream, seconds_.reduce_scatter);
  }
  Communicator& second_lane(std::string_view name) override {
    if (!lane_) lane_ = std::make_unique<TimedCollectives>(split(0, rank(), name), seconds_);
    return *lane_;
  }
  bool reads_peers() const override { return false; }

 private:
  Event pass(Stream& stream, double seconds) {
    dynamic_cast<VirtualStream&>(stream).pass(seconds);
    return last_ = stream.record();
  }

  const CollectiveSeconds seconds_;
  std::unique_ptr<TimedCollectives> lane_;
  Event last_;
};

// An engine whose model has equal modules, each of one parameter, in virtual time.
struct VirtualModel {
  static constexpr int64_t kNumel = 4096;  // of a module

  Engine& engine;
  Communicator& comm;
  VirtualClock& clock;
  VirtualTimeDevice& device;

  // Uses a module for so many seconds.
  void forward(int i, double seconds) const {
    engine.gather(module(i));
    engine.parameter(i);
    clock.caller += seconds;
    engine.release(module(i));
  }
  // The same, and gives its gradient.
  void backward(int i, double seconds) const {
    engine.gather(module(i));
    clock.caller += seconds;
    device.fill(device.inline_stream(), engine.gradient(i).view, 0.01F);
    engine.grad_ready(i);
    engine.release(module(i));
  }
  ModuleId module(int i) const { return engine.module_id("m" + std::to_string(i)); }
  // Lets everything before be over; returns the time.
  double settle() const { return clock.caller += 1e6; }
};

struct VirtualJob {
  Config config{};
  int modules = 8;
  VirtualCosts costs{};
  CollectiveSeconds collectives{};
  int ranks = 1;
  VirtualKind kind = VirtualKind::accelerator;
};

// A bucket for each module, which is gathered anew for each use at stage 3.
inline Config virtual_config(int stage) {
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = DType::bf16;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = VirtualModel::kNumel;
  config.zero.param_persistence_threshold = 0;
  config.zero.max_reuse_distance = 0;
  config.share_parameters = false;
  return config;
}

inline void run_virtually(const VirtualJob& job,
                          const std::function<void(const VirtualModel&)>& body) {
  run_ranks(job.ranks, [&](Communicator& comm) {
    VirtualClock clock;
    VirtualTimeDevice device(clock, job.costs, job.kind);
    TimedCollectives timed(comm, job.collectives);
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < job.modules; ++i) {
      specs.push_back({"w" + std::to_string(i), {VirtualModel::kNumel}, "m" + std::to_string(i)});
    }
    const auto engine = Engine::create(job.config, device, timed, specs, {ParameterGroup{}});
    engine->initialize_parameters([](ParameterId, int64_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.5F);
    });
    body({*engine, comm, clock, device});
  });
}

}  // namespace zerorun::testing
