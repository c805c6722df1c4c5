#pragma once

#include "device/cpu/cpu_device.h"
#include "tests/zero/toy_run.h"
#include "tests/zero/wrapped_communicator.h"

namespace zerorun::testing {

// Time that passes only as a test says: for the caller, and on each stream.
struct VirtualClock {
  double caller = 0.0;
  double look = 0.0;  // what it takes the caller to ask whether an event has happened
  int slept = 0;      // waits for events that had not happened
};

// The durations of operations.
struct VirtualCosts {
  double download_per_byte = 0.0;
  double upload_per_byte = 0.0;
  double update_per_element = 0.0;
};

class VirtualEvent final : public Event::State {
 public:
  VirtualEvent(VirtualClock& clock, double time) : clock_(clock), time_(time) {}
  bool ready() const override {
    clock_.caller += clock_.look;
    return time_ <= clock_.caller;
  }
  void synchronize() override {
    if (time_ > clock_.caller) ++clock_.slept;
    clock_.caller = std::max(clock_.caller, time_);
  }
  double time() const { return time_; }

 private:
  VirtualClock& clock_;
  const double time_;
};

// Does its work at once, and keeps account of when it would have been done.
class VirtualStream final : public CpuStream {
 public:
  VirtualStream(VirtualClock& clock, bool is_callers) : clock_(clock), is_callers_(is_callers) {}
  void submit(std::function<void()> task) override {
    pass(0.0);
    task();
  }
  void pass(double seconds) {
    now_ = std::max(now_, clock_.caller) + seconds;
    if (is_callers_) clock_.caller = now_;
  }
  Event record() override {
    pass(0.0);
    return Event(std::make_shared<VirtualEvent>(clock_, now_));
  }
  void wait(const Event& event) override {
    const auto* state = dynamic_cast<const VirtualEvent*>(event.state().get());
    if (state != nullptr) now_ = std::max(now_, state->time());
    if (is_callers_) clock_.caller = std::max(clock_.caller, now_);
  }
  void synchronize() override { clock_.caller = std::max(clock_.caller, now_); }
  bool is_inline() const override { return true; }

 private:
  VirtualClock& clock_;
  const bool is_callers_;
  double now_ = 0.0;
};

// A device computes on host memory, or beside a host that does.
enum class VirtualKind { host, accelerator };

// A device on which copies and updates take the time of `costs`, and nothing else takes any.
class VirtualTimeDevice final : public CpuDevice {
 public:
  VirtualTimeDevice(VirtualClock& clock, VirtualCosts costs, VirtualKind kind)
      : CpuDevice({}), clock_(clock), costs_(costs), inline_(clock, true) {
    if (kind == VirtualKind::host) return;
    host_ = std::make_unique<VirtualTimeDevice>(clock, costs, VirtualKind::host);
  }

  Device& host() override { return host_ ? *host_ : *this; }
  std::unique_ptr<Stream> make_stream(std::string_view /*name*/) override {
    return std::make_unique<VirtualStream>(clock_, false);
  }
  Stream& inline_stream() override { return inline_; }

  void upload(Stream& stream, const void* src, TensorView dst) override {
    pass(stream, costs_.upload_per_byte * static_cast<double>(dst.nbytes()));
    CpuDevice::upload(stream, src, dst);
  }
  void download(Stream& stream, TensorView src, void* dst) override {
    pass(stream, costs_.download_per_byte * static_cast<double>(src.nbytes()));
    CpuDevice::download(stream, src, dst);
  }
  void update(Stream& stream, const UpdateTensors& tensors,
              std::span<const UpdateSegment> segments) override {
    for (const UpdateSegment& segment : segments) {
      pass(stream, costs_.update_per_element * static_cast<double>(segment.numel));
    }
    CpuDevice::update(stream, tensors, segments);
  }

 private:
  static void pass(Stream& stream, double seconds) {
    dynamic_cast<VirtualStream&>(stream).pass(seconds);
  }

  VirtualClock& clock_;
  const VirtualCosts costs_;
  VirtualStream inline_;
  std::unique_ptr<VirtualTimeDevice> host_;
};

struct CollectiveSeconds {
  double gather = 0.0;
  double reduce_scatter = 0.0;
};

// Collectives that take a time on their stream. The calls of a communicator happen one after the
// other, whatever their streams.
class TimedCollectives final : public CollectiveGathers {
 public:
  template <typename Inner>
  TimedCollectives(Inner&& inner, CollectiveSeconds seconds)
      : CollectiveGathers(std::forward<Inner>(inner)), seconds_(seconds) {}

  Event all_gather(TensorView in, TensorView out, Sync sync, Stream& stream,
                   std::string_view label) override {
    stream.wait(last_);
    CollectiveGathers::all_gather(in, out, sync, stream, label);
    return pass(stream, seconds_.gather);
  }
  Event reduce_scatter(TensorView in, TensorView out, Output output, Stream& stream,
                       std::string_view label) override {
    stream.wait(last_);
    CollectiveGathers::reduce_scatter(in, out, output, stream, label);
    return pass(stream, seconds_.reduce_scatter);
  }

 private:
  std::unique_ptr<Communicator> make_lane(std::shared_ptr<Communicator> inner) override {
    return std::make_unique<TimedCollectives>(std::move(inner), seconds_);
  }
  Event pass(Stream& stream, double seconds) {
    dynamic_cast<VirtualStream&>(stream).pass(seconds);
    return last_ = stream.record();
  }

  const CollectiveSeconds seconds_;
  Event last_;
};

// An engine whose model has equal modules, each of one parameter, in virtual time.
struct VirtualModel {
  static constexpr int64_t kNumel = 4096;  // of a module

  Engine& engine;
  Communicator& comm;
  VirtualClock& clock;
  VirtualTimeDevice& device;
  int modules;

  // Uses each module for so many seconds.
  void forward(double seconds) const {
    for (int i = 0; i < modules; ++i) {
      engine.gather(module(i));
      engine.parameter(i);
      clock.caller += seconds;
      engine.release(module(i));
    }
  }
  // The same, and gives the gradients.
  void backward(double seconds) const {
    for (int i = modules; i-- > 0;) {
      engine.gather(module(i));
      clock.caller += seconds;
      give_gradient(engine, i, 0.01F);
      engine.release(module(i));
    }
  }
  void step() const {
    engine.end_micro_step();
    EXPECT_TRUE(engine.step().applied);
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
  Config config = gathering_config(stage, DType::bf16);
  config.zero.reduce_bucket_size = VirtualModel::kNumel;
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
    body({*engine, comm, clock, device, job.modules});
  });
}

}  // namespace zerorun::testing
