// Train's CUDA kernels beyond the contract of Kernels: waits, workspace, TF32, refusals.
#include "train/cuda/cuda_kernels.h"

#include <utility>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "testing/fake_cublas_lt/cublas_lt.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "tests/common.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/error_of.h"
#include "tests/gate.h"
#include "tests/train/model/golden_model.h"
#include "train/model/kernels.h"
#include "train/model/model.h"

namespace zerorun::train::testing {
namespace {

using fake::FakeCuda;

int waits() {
  const auto counts = FakeCuda::instance().counts();
  int sum = 0;
  for (const char* name : {"cudaStreamSynchronize", "cudaEventSynchronize"}) {
    const auto found = counts.find(name);
    sum += found == counts.end() ? 0 : found->second;
  }
  return sum;
}

std::unique_ptr<Kernels> make_kernels(Device& device, DType dtype, bool tf32 = false) {
  return cuda::make_cuda_kernels(device, {.dtype = dtype, .tf32 = tf32}, fake_cublas_lt(),
                                 {nullptr, "a test"});
}

const KernelsUnderTest kCuda{
    "cuda", [] { return std::make_shared<CudaDevice>(0, 0); },
    [](Device& device, DType dtype) { return make_kernels(device, dtype); }, DType::bf16};

TEST(CudaKernelsTest, TheHostWaitsForTheLossAndNothingElse) {
  GoldenModel model(kCuda);
  model.forward_backward();  // allocates what kernels need
  const Batch batch{model.tokens(), model.targets()};
  const int before = waits();
  model.model().forward_backward(batch);
  model.parameters().end_micro_step();
  EXPECT_EQ(waits(), before);
  model.model().take_loss();
  EXPECT_EQ(waits(), before + 1);
}

TEST(CudaKernelsTest, AlgorithmsAreChosenOnceForAShape) {
  GoldenModel model(kCuda);
  model.forward_backward();
  const int asked = FakeCuda::instance().counts().at("cublasLtMatmulAlgoGetHeuristic");
  model.forward_backward();
  EXPECT_EQ(FakeCuda::instance().counts().at("cublasLtMatmulAlgoGetHeuristic"), asked);
}

// A block has these products: attention in and out, feed-forward in and out, each forward and two
// backward. The head: logits and two backward. Nothing is computed twice.
TEST(CudaKernelsTest, AStepHasTheProductsOfItsFormulas) {
  GoldenModel model(kCuda);
  model.forward_backward();
  const int layers = static_cast<int>(Golden::config().layers);
  EXPECT_EQ(FakeCuda::instance().counts().at("cublasLtMatmul"), layers * 4 * 3 + 3);
}

TEST(CudaKernelsTest, AWorkspaceIsReplacedWhenItsWorkIsDone) {
  CudaDevice device(0, 0);
  Stream& stream = device.inline_stream();
  cuda::Workspace workspace(device, stream);
  void* const small = workspace.take(64);
  EXPECT_EQ(workspace.take(32), small);
  FakeCuda::instance().set_delay(std::chrono::microseconds(2000));
  device.fill(stream, {static_cast<std::byte*>(small), 16, DType::fp32}, 1.0F);
  const Event filled = stream.record();
  workspace.take(1 << 20);
  EXPECT_TRUE(filled.ready());
}

TEST(CudaKernelsTest, AWorkspaceCountsAsActivations) {
  CudaDevice device(0, 0);
  cuda::Workspace workspace(device, device.inline_stream());
  for (const size_t nbytes : {64, 4096}) {
    workspace.take(nbytes);
    EXPECT_EQ(device.memory_use(MemoryCategory::activations).live_bytes,
              static_cast<int64_t>(nbytes));
  }
}

TEST(CudaKernelsTest, Tf32RoundsTheFactorsOfFp32Products) {
  const auto device = kCuda.make_device();
  const LinearShape shape{33, 64, 17};
  const DeviceTensor x(*device, DType::fp32, random_floats(shape.rows * shape.in, 1));
  const DeviceTensor weight(*device, DType::fp32, random_floats(shape.in * shape.out, 2));
  const DeviceTensor y(*device, DType::fp32, shape.rows * shape.out, 0.0F);
  make_kernels(*device, DType::fp32)->linear(shape, x, weight, {}, {}, y);
  const Doubles exact = y.values();
  make_kernels(*device, DType::fp32, /*tf32=*/true)->linear(shape, x, weight, {}, {}, y);
  const Doubles rounded = y.values();
  expect_close(rounded, exact, 1e-3, "y");
  EXPECT_NE(rounded, exact);
}

// Kernels that are launched besides products, for GELU, its derivative, and gradients with a
// bias's.
TEST(CudaKernelsTest, EpiloguesAreLeftOutOnRequest) {
  CudaDevice device(0, 0);
  const LinearShape shape{32, 64, 16};
  const DeviceTensor x(device, DType::bf16, shape.rows * shape.in, 1.0F);
  const DeviceTensor weight(device, DType::bf16, shape.in * shape.out, 1.0F);
  const DeviceTensor bias(device, DType::bf16, shape.out, 1.0F);
  const DeviceTensor wide(device, DType::bf16, shape.rows * shape.in, 1.0F);
  const DeviceTensor y(device, DType::bf16, shape.rows * shape.out, 1.0F);
  const DeviceTensor z(device, DType::bf16, shape.rows * shape.out, 1.0F);
  for (const bool gelu : {true, false}) {
    for (const bool bias_gradient : {true, false}) {
      const auto kernels = cuda::make_cuda_kernels(
          device,
          {.dtype = DType::bf16, .gelu_epilogue = gelu, .bias_gradient_epilogue = bias_gradient},
          fake_cublas_lt(), {nullptr, "a test"});
      const auto launched = [&](const auto& call) {
        const int before = FakeCuda::instance().counts()["cudaLaunchKernel"];
        call();
        return FakeCuda::instance().counts()["cudaLaunchKernel"] - before;
      };
      EXPECT_EQ(launched([&] { kernels->linear_gelu(shape, x, weight, bias, y, z); }),
                gelu ? 0 : 1);
      EXPECT_EQ(launched([&] { kernels->linear_transposed_gelu(shape, y, weight, x, wide, wide); }),
                gelu ? 1 : 2);
      EXPECT_EQ(launched([&] {
                  kernels->linear_gradients(shape, x, y, {weight, false}, {bias, false});
                }),
                bias_gradient ? 0 : 2);
      // The algorithm is for aligned biases.
      const TensorView unaligned = wide.view().slice(1, shape.out);
      EXPECT_EQ(launched([&] { kernels->linear(shape, x, weight, bias, {}, y); }), 0);
      EXPECT_EQ(launched([&] { kernels->linear(shape, x, weight, unaligned, {}, y); }), 1);
    }
  }
}

TEST(CudaKernelsTest, OptionsThatWouldChangeNothingAreRefused) {
  const auto device = kCuda.make_device();
  const auto refusal_of = [&](const KernelOptions& options) {
    return error_of<ConfigError>([&] { train::make_kernels(*device, options); });
  };
  EXPECT_THAT(refusal_of({.dtype = DType::bf16, .tf32 = true}),
              AllOf(HasSubstr("--tf32"), HasSubstr("products of bf16"), HasSubstr("--dtype fp32")));
  EXPECT_THAT(refusal_of({.dtype = DType::fp32, .attention_workspace = 0}),
              AllOf(HasSubstr("--attention_workspace"), HasSubstr("parameters are fp32")));
  EXPECT_THAT(refusal_of({.dtype = DType::fp32, .fast_attention = true}),
              AllOf(HasSubstr("--fast_attention"), HasSubstr("parameters are fp32")));
  EXPECT_THAT(refusal_of({.dtype = DType::bf16, .attention_workspace = 0, .fast_attention = true}),
              AllOf(HasSubstr("--fast_attention"), HasSubstr("--attention_workspace")));
  const auto cpu = make_cpu_device();
  for (const KernelOptions& options :
       {KernelOptions{.gelu_epilogue = false}, KernelOptions{.bias_gradient_epilogue = false}}) {
    EXPECT_THAT(error_of<ConfigError>([&] { train::make_kernels(*cpu, options); }),
                AllOf(HasSubstr("--epilogues"), HasSubstr("--accelerator cuda")));
  }
}

TEST(CudaKernelsTest, RefusalsNameWhatWasRefused) {
  const auto device = kCuda.make_device();
  const auto kernels = make_kernels(*device, DType::bf16);
  const DeviceTensor x(*device, DType::bf16, 8 * 8, 1.0F);
  const DeviceTensor wide(*device, DType::fp32, 8 * 8, 1.0F);
  EXPECT_THAT(error_of<InternalError>([&] {
                kernels->linear({8, 8, 8}, x, wide, {}, {}, x);
              }),
              HasSubstr("linear: got fp32, expected bf16"));
  EXPECT_THAT(error_of<ConfigError>([&] {
                kernels->attention({1, 1, 0, 1, 264}, x, wide, x);
              }),
              HasSubstr("heads are 264 wide"));
  FakeCuda::instance().fail("cublasLtMatmulAlgoGetHeuristic", 0, CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_THAT(error_of<DeviceError>([&] {
                kernels->linear({8, 8, 8}, x, x, {}, {}, x);
              }),
              HasSubstr("no kernel for a product of [8, 8] and [8, 8] of bf16"));
  FakeCuda::instance().fail("cublasLtMatmul", 0, CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THAT(error_of<DeviceError>([&] {
                kernels->linear({8, 8, 16}, x, x, {}, {}, x);
              }),
              HasSubstr("cublasLtMatmul failed"));
}

TEST(CudaKernelsTest, LibrariesAreNamed) {
  const auto device = kCuda.make_device();
  EXPECT_EQ(make_kernels(*device, DType::bf16)->libraries(),
            "cuBLASLt 13.1, plain attention: a test");
}

}  // namespace
}  // namespace zerorun::train::testing

namespace zerorun::train {
namespace {

// Batches go to the GPU beside the host, which makes the next one meanwhile.
class TokenBatchTest : public zerorun::testing::FakeCudaTest {
 protected:
  TokenBatchTest() : FakeCudaTest(std::chrono::microseconds(2000)) {}
};

TEST_F(TokenBatchTest, TheNextOnesDoNotOverwriteOneThatIsStillOnItsWay) {
  constexpr int kBatches = 20;
  constexpr size_t kTokens = 64;
  CudaDevice device(0, 0);
  Stream& stream = device.inline_stream();
  const Buffer pinned = device.allocate_pinned(kBatches * kTokens * sizeof(int32_t));
  auto* const seen = reinterpret_cast<int32_t*>(pinned.data());
  TokenBatch on_device(device, kTokens);
  for (int i = 0; i < kBatches; ++i) {
    const std::vector<int32_t> tokens(kTokens, i);
    on_device.upload({tokens, tokens});
    auto* const data = reinterpret_cast<std::byte*>(const_cast<int32_t*>(on_device.tokens()));
    device.download(stream, {data, kTokens * sizeof(int32_t), DType::uint8}, seen + i * kTokens);
  }
  stream.synchronize();
  for (size_t i = 0; i < kBatches * kTokens; ++i) {
    ASSERT_EQ(seen[i], static_cast<int32_t>(i / kTokens));
  }
  EXPECT_EQ(fake_.counts()["(copy from pageable memory)"], 0);  // each holds up the host
}

// The sorter is held up until the forward pass could be under way; waiting for it would be for
// ever.
TEST_F(TokenBatchTest, TokensAreOnTheDeviceBeforeTheirRowsAreSorted) {
  CudaDevice device(0, 0);
  Stream& stream = device.inline_stream();
  zerorun::testing::Gate may_sort;
  auto sorter = make_worker_stream("sorter");
  sorter->submit([&] { may_sort.pass(); });
  TokenBatch on_device(device, 8, std::move(sorter));
  const std::vector<int32_t> tokens = {7, 3, 7, 5, 3};
  const auto read = [&](const int32_t* from, size_t count) {
    std::vector<int32_t> found(count);
    auto* const data = reinterpret_cast<std::byte*>(const_cast<int32_t*>(from));
    device.download(stream, {data, static_cast<int64_t>(count * sizeof(int32_t)), DType::uint8},
                    found.data());
    stream.synchronize();
    return found;
  };
  for (int round = 0; round < 3; ++round) {
    on_device.upload({tokens, tokens});
    EXPECT_EQ(read(on_device.tokens(), tokens.size()), tokens);
    EXPECT_EQ(read(on_device.targets(), tokens.size()), tokens);
    may_sort.open();
    const TokenOrder order = on_device.order();
    EXPECT_EQ(order.distinct, 3);
    EXPECT_EQ(read(order.rows, tokens.size()), (std::vector<int32_t>{1, 4, 3, 0, 2}));
    EXPECT_EQ(read(order.begins, 4), (std::vector<int32_t>{0, 2, 3, 5}));
  }
}

}  // namespace
}  // namespace zerorun::train
