// The engine's orders between streams, on the CPU's asynchronous streams with delays: a missing
// wait changes the bits, and ThreadSanitizer sees it. Ranks are threads.

#include "comm/device_communicator.h"
#include "tests/zero/delayed_device.h"
#include "tests/zero/stream_program.h"
#include "tests/zero/toy_run.h"
#include "tests/zero/wrapped_communicator.h"

namespace zerorun::testing {
namespace {

Config config_of(const StreamSetting& setting, int64_t accumulation) {
  Config config = stream_config(setting);
  config.batch.accumulation_steps = accumulation;
  config.share_parameters = false;  // gathers move something
  config.gradient_clipping = 0.5;
  return config;
}

uint64_t train(const Config& config, const Connect& connect) {
  return hash_after({.config = config, .connect = connect}, [](Engine& engine, Communicator& comm) {
    StreamProgram program(engine, comm.rank());
    for (int step = 0; step < 3; ++step) program.step();
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

class StreamOrderTest : public ::testing::TestWithParam<StreamSetting> {};

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

using Setting = StreamSetting;
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
