// A step of train on CUDA in which each entry point of CUDA, cuBLASLt and cuDNN fails once: see
// tests/device/cuda/failing_calls.h. What NCCL does to an engine is in
// tests/zero/cuda/engine_failure_test.cc.

#include "comm/nccl/communicator.h"
#include "core/check.h"
#include "device/cuda/cuda_device.h"
#include "testing/fake_cublas_lt/cublas_lt.h"
#include "tests/common.h"
#include "tests/device/cuda/failing_calls.h"
#include "tests/train/run/trainer_fixture.h"
#include "train/cuda/cuda_kernels.h"
#include "train/cuda/kernels.h"

namespace zerorun::train::testing {
namespace {
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

class TrainingFailureTest : public TrainerTest {
 protected:
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
