// The engine's orders between streams, on the CPU's asynchronous streams with delays: a missing
// wait changes the bits, and ThreadSanitizer sees it. Ranks are threads.

#include <ostream>

#include "comm/device_communicator.h"
#include "tests/zero/delayed_device.h"
#include "tests/zero/stream_program.h"
#include "tests/zero/toy_run.h"
#include "tests/zero/wrapped_communicator.h"

namespace zerorun::testing {
namespace {

struct Setting {
  int stage = 0;
  double offloaded = 0.0;  // part of the optimizer's states that is stored on the host
  OffloadDevice param = OffloadDevice::none;
  std::string optimizer = "AdamW";
};
void PrintTo(const Setting& setting, std::ostream* out) {
  *out << "stage " << setting.stage << ", offloaded " << setting.offloaded << ", parameters "
       << (setting.param == OffloadDevice::none ? "on the device, " : "on the host, ")
       << setting.optimizer;
}

Config config_of(const Setting& setting, int64_t accumulation) {
  Config config = stream_config(setting.stage, setting.param, setting.offloaded);
  config.batch.accumulation_steps = accumulation;
  config.optimizer.type = setting.optimizer;
  config.share_parameters = false;  // gathers move something
  config.gradient_clipping = 0.5;
  return config;
}

uint64_t train(const Config& config, const Connect& connect) {
  constexpr int kSteps = 3;
  const ToyJob job{.config = config, .connect = connect};
  return hash_after(job, [&](Engine& engine, Communicator& comm) {
    StreamProgram program(engine, comm.rank());
    for (int step = 0; step < kSteps; ++step) {
      for (int64_t i = 0; i < config.batch.accumulation_steps; ++i) program.micro_step();
      EXPECT_TRUE(engine.step().applied);
    }
  });
}

std::shared_ptr<Communicator> connect_synchronously(CommunicatorOptions& options) {
  options.device = make_cpu_device({.synchronous_streams = true});
  auto on_cpu = options;
  on_cpu.device = nullptr;
  return make_communicator(on_cpu);
}

Connect connect_delayed(DelayedKind kind, unsigned seed) {
  return [=](CommunicatorOptions& options) {
    options.device =
        std::make_shared<DelayedDevice>(kind, seed + 100U * static_cast<unsigned>(options.rank));
    if (kind == DelayedKind::accelerator) return make_host_staged_communicator(options);
    return make_communicator(options);
  };
}

Connect connect_with_lanes(unsigned seed) {
  return [=](CommunicatorOptions& options) {
    auto comm = std::make_shared<CollectiveGathers>(make_communicator(options));
    options.device = std::make_shared<DelayedDevice>(
        DelayedKind::accelerator, seed + 100U * static_cast<unsigned>(options.rank));
    return comm;
  };
}

class StreamOrderTest : public ::testing::TestWithParam<Setting> {};

TEST_P(StreamOrderTest, DelaysChangeNoBit) {
  for (const int64_t accumulation : {1, 2}) {
    const Config config = config_of(GetParam(), accumulation);
    const uint64_t expected = train(config, connect_synchronously);
    for (const DelayedKind kind : {DelayedKind::host, DelayedKind::accelerator}) {
      for (const unsigned seed : {1U, 2U, 3U}) {
        EXPECT_EQ(train(config, connect_delayed(kind, seed)), expected)
            << (kind == DelayedKind::host ? "host" : "accelerator") << ", seed " << seed
            << ", micro-steps " << accumulation;
      }
    }
    for (const unsigned seed : {1U, 2U, 3U}) {
      EXPECT_EQ(train(config, connect_with_lanes(seed)), expected)
          << "lanes, seed " << seed << ", micro-steps " << accumulation;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, StreamOrderTest,
                         ::testing::Values(Setting{0}, Setting{1}, Setting{1, 0.5}, Setting{2},
                                           Setting{2, 1.0}, Setting{3}, Setting{3, 0.5},
                                           Setting{3, 0.0, OffloadDevice::cpu},
                                           Setting{3, 1.0, OffloadDevice::cpu},
                                           Setting{.stage = 2, .optimizer = "Lamb"},
                                           Setting{2, 0.5, OffloadDevice::none, "Lamb"},
                                           Setting{.stage = 2, .optimizer = "Muon"},
                                           Setting{1, 0.5, OffloadDevice::none, "Muon"}));

}  // namespace
}  // namespace zerorun::testing
