// The engine's orders between streams, on the CPU's asynchronous streams with delays: a missing
// wait changes the bits, and ThreadSanitizer sees it. Ranks are threads.

#include "comm/device_communicator.h"
#include "device/cpu/cpu_device.h"
#include "tests/zero/stream_program.h"
#include "tests/zero/toy_run.h"
#include "tests/zero/wrapped_communicator.h"

namespace zerorun::testing {
namespace {

// A worker stream that begins some of its tasks late, at random: an order that nothing enforces
// shows. The draws depend on the seed only.
class DelayedStream final : public CpuStream {
 public:
  DelayedStream(std::string_view name, unsigned seed)
      : stream_(make_worker_stream(name)), random_(seed) {}

  void submit(std::function<void()> task) override {
    constexpr unsigned kEvery = 4;
    constexpr unsigned kMax = 150;  // microseconds
    const bool late = random_() % kEvery == 0;
    const std::chrono::microseconds delay(late ? random_() % kMax : 0);
    if (!late) return stream_->submit(std::move(task));
    stream_->submit([delay, task = std::move(task)] {
      std::this_thread::sleep_for(delay);
      task();
    });
  }
  Event record() override { return stream_->record(); }
  void wait(const Event& event) override { stream_->wait(event); }
  void synchronize() override { stream_->synchronize(); }
  bool is_inline() const override { return false; }

 private:
  const std::unique_ptr<CpuStream> stream_;
  std::minstd_rand random_;
};

// As a GPU's pool has it: memory that was freed is for the next one who asks for its size, and work
// that was submitted before may still use it.
class KeptMemory : public std::enable_shared_from_this<KeptMemory> {
 public:
  // Ordinary memory of `make` where none of the size is kept.
  Buffer take(size_t nbytes, const std::function<Buffer()>& make) {
    auto block = std::make_shared<Buffer>();
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = kept_.find(nbytes); found != kept_.end()) {
        *block = std::move(found->second);
        kept_.erase(found);
      }
    }
    if (!*block) *block = make();
    return {block->data(), nbytes, [self = shared_from_this(), block] {
              const std::lock_guard lock(self->mutex_);
              self->kept_.emplace(block->nbytes(), std::move(*block));
            }};
  }

 private:
  std::mutex mutex_;
  std::multimap<size_t, Buffer> kept_;
};

// A device computes on host memory, or beside a host that does.
enum class DelayedKind { host, accelerator };

// The CPU device with such streams. As an accelerator even the inline stream runs beside the
// caller, and host code may not touch its memory.
class DelayedDevice final : public CpuDevice {
 public:
  DelayedDevice(DelayedKind kind, unsigned seed) : CpuDevice({}), seed_(seed) {
    if (kind == DelayedKind::host) return;
    inline_ = make_stream("inline");
    host_ = std::make_unique<DelayedDevice>(DelayedKind::host, seed + 1);
  }

  Buffer allocate(size_t nbytes, MemoryCategory category) override {
    return kept_->take(nbytes, [&] { return CpuDevice::allocate(nbytes, category); });
  }
  Device& host() override { return host_ ? *host_ : *this; }
  std::unique_ptr<Stream> make_stream(std::string_view name) override {
    constexpr unsigned kNext = 7919;
    return std::make_unique<DelayedStream>(name, seed_ += kNext);
  }
  Stream& inline_stream() override { return inline_ ? *inline_ : CpuDevice::inline_stream(); }

 private:
  const std::shared_ptr<KeptMemory> kept_ = std::make_shared<KeptMemory>();  // ends after streams
  unsigned seed_;
  std::unique_ptr<DelayedDevice> host_;
  std::unique_ptr<Stream> inline_;
};

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
    for (const auto& [kind, seed] :
         each(std::array{DelayedKind::host, DelayedKind::accelerator}, std::array{1U, 2U, 3U})) {
      EXPECT_EQ(train(config, connect_delayed(kind, seed)), expected)
          << (kind == DelayedKind::host ? "host" : "accelerator") << ", seed " << seed
          << ", micro-steps " << accumulation;
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
