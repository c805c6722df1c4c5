// Whole steps of train on CUDA, with fake CUDA libraries below: model, engine and collectives, on
// two ranks, against the same steps on the CPU.
#include "comm/device_communicator.h"
#include "comm/nccl/communicator.h"
#include "core/check.h"
#include "testing/fake_cublas_lt/cublas_lt.h"
#include "tests/device/cuda/failing_calls.h"
#include "tests/train/run/trainer_fixture.h"
#include "train/cuda/cuda_kernels.h"
#include "train/cuda/kernels.h"

namespace zerorun::train::testing {
namespace {

using fake::FakeCuda;

constexpr int kRanks = 2;
constexpr int kSteps = 2;

struct Trajectory {
  std::vector<double> losses;  // of the steps, then of an evaluation
  uint64_t hash = 0;           // of the parameters
};

struct TrainingTest : TrainerTest {
  TrainingTest() { FakeCuda::instance().set_devices(kRanks); }

  // Two micro-steps a step, at this stage.
  std::vector<std::string> options(int stage, const std::string& dtype) const {
    constexpr const char* kMore = R"(, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0)";
    return {"--dtype", dtype, "--config", config(stage, zero_, kMore)};
  }

  static Trajectory train(Trainer& trainer) {
    Trajectory trajectory;
    trainer.initialize();
    for (int i = 0; i < kSteps; ++i) trajectory.losses.push_back(trainer.step(0).report.loss);
    trajectory.losses.push_back(trainer.evaluate());
    trajectory.hash = trainer.engine().states().parameter_hash();
    return trajectory;
  }

  Trajectory on_cpu(int stage, const std::string& dtype) const {
    return result_of(kRanks, options(stage, dtype),
                     [](const RankOfRun& rank) { return train(rank.trainer); });
  }

  using MakeCommunicator = std::shared_ptr<Communicator> (*)(const CommunicatorOptions&);

  void on_gpus(int stage, const std::string& dtype, const std::function<void(Trainer&, int)>& body,
               MakeCommunicator make = make_nccl_communicator) const {
    const std::vector<std::string> asked = options(stage, dtype);
    const auto store = make_memory_store();
    zerorun::testing::run_threads(kRanks, [&](int rank) {
      const auto device =
          std::make_shared<CudaDevice>(make == make_nccl_communicator ? rank : 0, 0);
      const auto comm = make(
          {.rank = rank, .world_size = kRanks, .store = store, .timeout = 60s, .device = device});
      const RunSetup setup = setup_of(asked, {.rank = rank, .world_size = kRanks});
      const KernelOptions kernels{.dtype = setup.config.precision.param_dtype};
      Trainer trainer(
          setup, *comm, *device,
          cuda::make_cuda_kernels(*device, kernels, fake_cublas_lt(), {nullptr, "a test"}));
      body(trainer, rank);
    });
  }

  Trajectory on_cuda(int stage, const std::string& dtype,
                     MakeCommunicator make = make_nccl_communicator) const {
    std::array<Trajectory, kRanks> results;
    const auto body = [&](Trainer& trainer, int rank) {
      results.at(static_cast<size_t>(rank)) = train(trainer);
    };
    on_gpus(stage, dtype, body, make);
    return results[0];
  }

  static void expect_near(const Trajectory& actual, const Trajectory& expected, double tolerance) {
    ASSERT_EQ(actual.losses.size(), expected.losses.size());
    for (size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(actual.losses[i], expected.losses[i], tolerance * expected.losses[i]) << i;
    }
  }

  std::string zero_;  // what zero_optimization has besides the stage
};

TEST_F(TrainingTest, EveryStageFollowsTheCpu) {
  const Trajectory expected = on_cpu(0, "fp32");
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  uint64_t first_hash = 0;
  for (const int stage : {0, 1, 2, 3}) {
    const Trajectory actual = on_cuda(stage, "fp32");
    expect_near(actual, expected, 1e-5);
    if (stage == 0) first_hash = actual.hash;
    EXPECT_EQ(actual.hash, first_hash) << "stage " << stage;
  }
}

TEST_F(TrainingTest, SixteenBitsAndRanksThatShareAGpuStayCloseToTheCpu) {
  for (const char* dtype : {"bf16", "fp16"}) expect_near(on_cuda(2, dtype), on_cpu(2, dtype), 5e-3);
  expect_near(on_cuda(2, "fp32", make_host_staged_communicator), on_cpu(2, "fp32"), 1e-5);
}

// For the gradient norm: the loss has been read by then, and another thread tells when the GPU was
// done with the backward pass.
TEST_F(TrainingTest, AStepWaitsForTheGpuOnce) {
  FakeCuda::instance().set_inline_streams(true);
  for (const int stage : {0, 1, 2, 3}) {
    on_gpus(stage, "bf16", [&](Trainer& trainer, int) {
      trainer.initialize();
      for (int i = 0; i < 2; ++i) trainer.step(0);  // the first ones allocate
      for (int i = 0; i < 3; ++i) {
        const int64_t before = zerorun::testing::waits_so_far();
        const StepReport report = trainer.step(0).report;
        EXPECT_EQ(zerorun::testing::waits_so_far() - before, 1) << "stage " << stage;
        const StepTimes& times = report.times;
        EXPECT_GT(times.fwd_bwd_ms, 0.0);
        EXPECT_GE(times.optimizer_ms, 0.0);  // the thread may have come late
        EXPECT_LE(times.fwd_bwd_ms + times.optimizer_ms, times.step_ms);
      }
    });
  }
  FakeCuda::instance().set_inline_streams(false);
}

// How often this thread waits on the stream of its kernels and products, when some came before,
// within the forward that begins with a call.
int waits_between_kernels(size_t first_call) {
  constexpr int kOfForward = 1 + 2 * 7;  // embedding, and at least these of each block
  const std::vector<fake::Call> calls = FakeCuda::instance().calls();
  const void* stream = nullptr;
  int launched = 0;
  int waited_at = 0;
  int waits = 0;
  for (size_t i = first_call; i < calls.size() && launched < kOfForward; ++i) {
    if (calls[i].thread != std::this_thread::get_id()) continue;
    if (calls[i].name == "cudaLaunchKernel" || calls[i].name == "cublasLtMatmul") {
      stream = calls[i].stream;
      ++launched;
    } else if (launched > waited_at && calls[i].name == "cudaStreamWaitEvent" &&
               calls[i].stream == stream) {
      ++waits;
      waited_at = launched;
    }
  }
  return waits;
}

TEST_F(TrainingTest, ForwardWaitsForUpdatedParametersWhenItComesToThem) {
  FakeCuda::instance().set_inline_streams(true);
  for (const bool by_default : {true, false}) {
    zero_ = R"(, "reduce_bucket_size": 1000)";
    if (!by_default) zero_ += R"(, "overlap_comm": false)";
    for (const int stage : {1, 2}) {
      on_gpus(stage, "bf16", [&](Trainer& trainer, int) {
        trainer.initialize();
        for (int i = 0; i < 2; ++i) trainer.step(0);  // the first ones allocate
        const size_t before = FakeCuda::instance().calls().size();
        trainer.step(0);
        const int waits = waits_between_kernels(before);
        EXPECT_TRUE(by_default ? waits >= 3 : waits == 0) << waits << ", stage " << stage;
      });
    }
  }
  FakeCuda::instance().set_inline_streams(false);
}

// Work runs late and at random times: orderings that nothing enforces would change the numbers.
TEST_F(TrainingTest, DelaysChangeNothing) {
  const Trajectory expected = on_cuda(3, "bf16");
  FakeCuda::instance().set_delay(100us);
  const Trajectory delayed = on_cuda(3, "bf16");
  EXPECT_EQ(delayed.losses, expected.losses);
  EXPECT_EQ(delayed.hash, expected.hash);
}

// A step of train on CUDA in which each entry point of CUDA, cuBLASLt and cuDNN fails once: see
// tests/device/cuda/failing_calls.h. What NCCL does to an engine is in
// tests/zero/cuda/engine_failure_test.cc.
using zerorun::testing::FailingCalls;

// The plain kernels in the place of cuDNN's, which may refuse to run.
class FakeCudnn final : public cuda::CudnnAttention {
 public:
  std::string version() const override { return "fake"; }
  bool forward(cudaStream_t stream, const AttentionShape& shape, TensorView qkv, TensorView log_sum,
               TensorView out, cuda::Workspace& workspace) override {
    workspace.take(64);
    execute(stream);
    cuda::attention(stream, shape, qkv, log_sum, out);
    return true;
  }
  bool backward(cudaStream_t stream, const AttentionShape& shape, const AttentionState& state,
                TensorView dout, TensorView dqkv, cuda::Workspace& workspace) override {
    execute(stream);
    float* const means = workspace.floats(shape.batch * shape.seq_len * shape.heads);
    cuda::attention_backward(stream, shape, state, dout, dqkv, means);
    return true;
  }

 private:
  static void execute(cudaStream_t stream) {
    if (fake::FakeCuda::instance().enter("cudnnBackendExecute", stream) == 0) return;
    fail<DeviceError>("cuDNN's attention failed: cudnnBackendExecute");
  }
};

struct TrainingFailureTest : TrainerTest {
  TrainingFailureTest() {
    model_ = folder_.write("model.json", R"({"n_embd": 8, "n_layer": 1, "n_head": 1,
                                             "n_positions": 8, "n_inner": 16})");
  }
  uint64_t train(bool fused_attention) const {
    const auto device = std::make_shared<CudaDevice>(0, 0);
    const auto comm = make_nccl_communicator({.device = device});
    const RunSetup setup = setup_of({"--dtype", "fp32", "--config", config_});
    cuda::FusedAttention attention{nullptr, "a test"};
    if (fused_attention) attention.cudnn = std::make_unique<FakeCudnn>();
    Trainer trainer(setup, *comm, *device,
                    cuda::make_cuda_kernels(*device, {}, fake_cublas_lt(), std::move(attention)));
    trainer.initialize();
    trainer.step(0);
    return trainer.engine().states().parameter_hash();
  }

  const std::string config_ = config(2);
};

TEST_F(TrainingFailureTest, EveryRefusedCallIsATypedErrorOrWithoutConsequence) {
  using Which = FailingCalls::Which;
  for (const auto& [which, fused_attention] :
       {std::pair(Which::first, false), {Which::middle, true}, {Which::last, true}}) {
    FailingCalls calls(fused_attention ? "train with cuDNN" : "train", 1,
                       [&, fused = fused_attention](int, const auto&) { return train(fused); });
    EXPECT_GT(calls.fail_each(which), 25);
  }
}

}  // namespace
}  // namespace zerorun::train::testing
