// Few functions are between a call of the engine and its collective; ARCHITECTURE.md names them.
#include "tests/call_path.h"

#include "tests/zero/toy_run.h"
#include "tests/zero/wrapped_communicator.h"

namespace zerorun::call_path {
namespace {

using testing::WrappedCommunicator;

// Remembers the stack of the last collective of each kind.
struct WatchedCommunicator final : WrappedCommunicator {
  using WrappedCommunicator::WrappedCommunicator;

  Event all_reduce(TensorView in, TensorView out, ReduceOp op, Output output, Stream& stream,
                   std::string_view label) override {
    (label == "gradient norm" ? decision : frames) = stack();
    return WrappedCommunicator::all_reduce(in, out, op, output, stream, label);
  }
  Event reduce_scatter(TensorView in, TensorView out, Output output, Stream& stream,
                       std::string_view label) override {
    frames = stack();
    return WrappedCommunicator::reduce_scatter(in, out, output, stream, label);
  }
  Event all_gather(TensorView in, TensorView out, Sync sync, Stream& stream,
                   std::string_view label) override {
    frames = stack();
    return WrappedCommunicator::all_gather(in, out, sync, stream, label);
  }

  Frames frames;
  Frames decision;  // of the norm's
};

struct CallPathTest : ::testing::TestWithParam<int> {
  static void with_engine(const std::function<void(Engine&, WatchedCommunicator&)>& body) {
    const auto connect = [](CommunicatorOptions& options) {
      return std::make_shared<WatchedCommunicator>(testing::connect_on_cpu(options));
    };
    Config config = testing::gathering_config(GetParam());
    config.zero.reduce_bucket_size = 1;
    const testing::ToyJob job{.config = config, .connect = connect};
    testing::run_engines(job, [&](Engine& engine, Communicator& comm) {
      auto& watched = dynamic_cast<WatchedCommunicator&>(comm);
      watched.frames.clear();
      body(engine, watched);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Stages, CallPathTest, ::testing::Range(0, 4));

TEST_P(CallPathTest, OfAGradient) {
  with_engine([](Engine& engine, WatchedCommunicator& comm) {
    const ParameterId id = engine.parameter_id("head.bias");
    engine.device().fill(engine.device().inline_stream(), engine.gradient(id).view, 0);
    const size_t caller = stack().size();
    engine.grad_ready(id);
    expect_path(comm.frames, caller, 3, "The path of a gradient");
  });
}

// A framework's hook adds one more: GradientCollector::on_gradient.
TEST_P(CallPathTest, OfAContribution) {
  with_engine([](Engine& engine, WatchedCommunicator& comm) {
    const ParameterId id = engine.parameter_id("head.bias");
    std::vector<float> values(static_cast<size_t>(engine.numel(id)));
    const std::array gradient = {Contribution{id, view_of(std::span<float>(values))}};
    const size_t caller = stack().size();
    engine.hooks().contribute(gradient);
    expect_path(comm.frames, caller, 3, "The path of a gradient");
  });
}

TEST_P(CallPathTest, OfAGather) {
  if (GetParam() < 3) GTEST_SKIP() << "nothing to gather";
  with_engine([](Engine& engine, WatchedCommunicator& comm) {
    const ModuleId module = engine.module_id("h.0");
    const size_t caller = stack().size();
    engine.gather(module);
    expect_path(comm.frames, caller, 8, "The path of a gather (stage 3)");
  });
}

TEST_P(CallPathTest, OfTheDecision) {
  with_engine([](Engine& engine, WatchedCommunicator& comm) {
    engine.end_micro_step();
    const size_t caller = stack().size();
    engine.step();
    expect_path(comm.decision, caller, 5, "The path of a step");
  });
}

}  // namespace
}  // namespace zerorun::call_path
