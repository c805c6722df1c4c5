// Everything that kernels and models do (tests/train/*_conformance.h), with train's CUDA kernels on
// a fake of CUDA and cuBLASLt: the kernels run as C++, products in the plain loops of the fake.
// Train's CUDA kernels beyond the contract of Kernels: waits, workspace, TF32, refusals.
#include "train/cuda/cuda_kernels.h"

#include "testing/fake_cublas_lt/cublas_lt.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/gate.h"
#include "tests/train/model/kernels_conformance.h"
#include "tests/train/model/model_conformance.h"

namespace zerorun::train::testing {
namespace {

using fake::FakeCuda;

int waits() {
  auto counts = FakeCuda::instance().counts();
  return counts["cudaStreamSynchronize"] + counts["cudaEventSynchronize"];
}

std::unique_ptr<Kernels> make_kernels(Device& device, DType dtype, bool tf32 = false) {
  return cuda::make_cuda_kernels(device, {.dtype = dtype, .tf32 = tf32}, fake_cublas_lt(),
                                 {nullptr, "a test"});
}

const KernelsUnderTest kCuda{
    "cuda", [] { return std::make_shared<CudaDevice>(0, 0); },
    [](Device& device, DType dtype) { return make_kernels(device, dtype); }, DType::bf16};

// A block has these products: attention in and out, feed-forward in and out, each forward and two
// backward. The head: logits and two backward. Nothing is computed twice.
TEST(CudaKernelsTest, AStepHasTheProductsOfItsFormulasAndWaitsForTheLossAlone) {
  GoldenModel model(kCuda);
  model.forward_backward();  // allocates what kernels need
  auto counts = FakeCuda::instance().counts();
  EXPECT_EQ(counts["cublasLtMatmul"], static_cast<int>(Golden::config().layers) * 4 * 3 + 3);
  const int asked = counts["cublasLtMatmulAlgoGetHeuristic"];
  const int before = waits();
  model.model().forward_backward(model.batch());
  EXPECT_EQ(waits(), before);
  model.model().take_loss();
  EXPECT_EQ(waits(), before + 1);
  EXPECT_EQ(FakeCuda::instance().counts()["cublasLtMatmulAlgoGetHeuristic"], asked);
}

TEST(CudaKernelsTest, AWorkspaceIsReplacedWhenItsWorkIsDone) {
  CudaDevice device(0, 0);
  Stream& stream = device.inline_stream();
  cuda::Workspace workspace(device, stream);
  const auto held = [&] { return device.memory_use(MemoryCategory::activations).live_bytes; };
  void* const small = workspace.take(64);
  EXPECT_EQ(held(), 64);
  EXPECT_EQ(workspace.take(32), small);
  FakeCuda::instance().set_delay(2000us);
  device.fill(stream, {static_cast<std::byte*>(small), 16, DType::fp32}, 1.0F);
  const Event filled = stream.record();
  workspace.take(1 << 20);
  EXPECT_TRUE(filled.ready());
  EXPECT_EQ(held(), 1 << 20);
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

// Kernels launched besides products, for GELU, its derivative, and gradients with a bias's.
TEST(CudaKernelsTest, EpiloguesAreLeftOutOnRequest) {
  CudaDevice device(0, 0);
  const LinearShape shape{32, 64, 16};
  const auto ones = [&](int64_t numel) { return DeviceTensor(device, DType::bf16, numel, 1.0F); };
  const DeviceTensor x = ones(shape.rows * shape.in);
  const DeviceTensor wide = ones(shape.rows * shape.in);
  const DeviceTensor weight = ones(shape.in * shape.out);
  const DeviceTensor bias = ones(shape.out);
  const DeviceTensor y = ones(shape.rows * shape.out);
  const DeviceTensor z = ones(shape.rows * shape.out);
  for (const auto& [gelu, bias_gradient] : each(kEither, kEither)) {
    const auto kernels = cuda::make_cuda_kernels(
        device,
        {.dtype = DType::bf16, .gelu_epilogue = gelu, .bias_gradient_epilogue = bias_gradient},
        fake_cublas_lt(), {nullptr, "a test"});
    const auto launched = [&](const auto& call) {
      const int before = FakeCuda::instance().counts()["cudaLaunchKernel"];
      call();
      return FakeCuda::instance().counts()["cudaLaunchKernel"] - before;
    };
    EXPECT_EQ(launched([&] { kernels->linear_gelu(shape, x, weight, bias, y, z); }), gelu ? 0 : 1);
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

TEST(CudaKernelsTest, OptionsThatWouldChangeNothingAreRefused) {
  const auto device = kCuda.make_device();
  for (const auto& [options, named, why] :
       std::vector<std::tuple<KernelOptions, const char*, const char*>>{
           {{.dtype = DType::bf16, .tf32 = true}, "--tf32", "products of bf16"},
           {{.attention_workspace = 0}, "--attention_workspace", "parameters are fp32"},
           {{.fast_attention = true}, "--fast_attention", "parameters are fp32"},
           {{.dtype = DType::bf16, .attention_workspace = 0, .fast_attention = true},
            "--fast_attention",
            "--attention_workspace"}}) {
    EXPECT_ERROR_OF(ConfigError, train::make_kernels(*device, options), named, why);
  }
  const auto cpu = make_cpu_device();
  for (const KernelOptions& options :
       {KernelOptions{.gelu_epilogue = false}, KernelOptions{.bias_gradient_epilogue = false},
        KernelOptions{.tf32 = true}, KernelOptions{.attention_workspace = 1 << 20}}) {
    EXPECT_ERROR_OF(ConfigError, train::make_kernels(*cpu, options), "--", "--accelerator cuda");
  }
}

TEST(CudaKernelsTest, RefusalsNameWhatWasRefused) {
  const auto device = kCuda.make_device();
  const auto kernels = make_kernels(*device, DType::bf16);
  const DeviceTensor x(*device, DType::bf16, 8 * 8, 1.0F);
  const DeviceTensor wide(*device, DType::fp32, 8 * 8, 1.0F);
  const auto error_of_linear = [&](const LinearShape& shape, const DeviceTensor& weight) {
    return error_of([&] { kernels->linear(shape, x, weight, {}, {}, x); });
  };
  EXPECT_THAT(error_of_linear({8, 8, 8}, wide), HasSubstr("linear: got fp32, expected bf16"));
  EXPECT_ERROR_OF(ConfigError, kernels->attention({1, 1, 0, 1, 264}, x, wide, x),
                  "heads are 264 wide");
  FakeCuda::instance().fail("cublasLtMatmulAlgoGetHeuristic", 0, CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_THAT(error_of_linear({8, 8, 8}, x),
              HasSubstr("no kernel for a product of [8, 8] and [8, 8] of bf16"));
  FakeCuda::instance().fail("cublasLtMatmul", 0, CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THAT(error_of_linear({8, 8, 16}, x), HasSubstr("cublasLtMatmul failed"));
}

std::shared_ptr<Device> make_device(std::chrono::microseconds delay) {
  FakeCuda::instance().set_delay(delay);
  return std::make_shared<CudaDevice>(0, 0);
}

std::vector<KernelsUnderTest> cases() {
  const auto make = [](const cuda::CublasLt& lt, KernelOptions options = {}) {
    return [lt, options](Device& device, DType dtype) mutable {
      options.dtype = dtype;
      return cuda::make_cuda_kernels(device, options, lt, {nullptr, "a test"});
    };
  };
  const KernelOptions separate{.gelu_epilogue = false, .bias_gradient_epilogue = false};
  const auto plain_device = [] { return make_device(0us); };
  const auto slow_device = [] { return make_device(200us); };
  std::vector<KernelsUnderTest> all =
      with_every_dtype({"cuda", plain_device, make(fake_cublas_lt())});
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    all.push_back(
        {"cuda_without_epilogues", plain_device, make(fake_cublas_lt_without_epilogues()), dtype});
  }
  all.push_back(
      {"cuda_with_separate_kernels", plain_device, make(fake_cublas_lt(), separate), DType::bf16});
  all.push_back({"cuda_with_delays", slow_device, make(fake_cublas_lt()), DType::bf16});
  return all;
}

ZR_INSTANTIATE_KERNELS_CONFORMANCE(cases());
INSTANTIATE_TEST_SUITE_P(Kernels, ModelConformance, ::testing::ValuesIn(cases()), name_of_case);

// Checks that hold after every test of this program.
class Clean : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& /*info*/) override { FakeCuda::instance().reset(); }
  void OnTestEnd(const ::testing::TestInfo& /*info*/) override {
    EXPECT_EQ(FakeCuda::instance().violations(), std::vector<std::string>());
    EXPECT_EQ(FakeCuda::instance().leaks(), std::vector<std::string>());
  }
};
const bool kListening = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Clean);
  return true;
}();

}  // namespace
}  // namespace zerorun::train::testing

namespace zerorun::train {
namespace {

// Batches go to the GPU beside the host, which makes the next one meanwhile.
struct TokenBatchTest : zerorun::testing::FakeCudaTest {
  TokenBatchTest() : FakeCudaTest(2000us) {}
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

// The sorter is held up until the forward pass could be under way; waiting for it would not end.
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

namespace zerorun::train::cuda {
namespace {

constexpr int64_t kMiB = 1 << 20;

AttentionShape gpt2(int64_t batch, int64_t seq_len) {
  return {.batch = batch, .seq_len = seq_len, .heads = 12, .width = 768};
}

TEST(AttentionWorkspaceTest, GrowsWithTheSquareOfTheSequenceUnlessItIsFast) {
  EXPECT_EQ(attention_workspace(gpt2(16, 1024)), 384 * kMiB);
  EXPECT_EQ(attention_workspace(gpt2(1, 65)), 2 * 12 * 128 * 128);  // in whole tiles
  EXPECT_EQ(fast_attention_workspace(gpt2(16, 1024)), 4.0 * 16 * 1024 * (768 + 12));
  EXPECT_TRUE(cudnn_has_attention(gpt2(16, 1024), DType::bf16));
  EXPECT_FALSE(cudnn_has_attention(gpt2(16, 1024), DType::fp32));
}

TEST(AttentionWorkspaceTest, ALimitForAttentionThatIsNotUsedIsRefused) {
  EXPECT_NO_THROW(refuse_unused({}, "no cuDNN"));
  for (const auto& [options, name] :
       {std::pair(KernelOptions{.attention_workspace = 0}, "--attention_workspace"),
        {KernelOptions{.fast_attention = true}, "--fast_attention"}}) {
    EXPECT_ERROR_OF(ConfigError, refuse_unused(options, "no cuDNN"), name, "no cuDNN");
  }
}

// On Blackwell cuDNN has it from 9.18 on.
TEST(LacksAttentionTest, WhereTheBackwardHasNoOrderedKernelTheWarningSaysWhatHelps) {
  EXPECT_THAT(lacks_attention(gpt2(16, 1024), true, "below 9.18.0"),
              HasAll("deterministic backward", "16 x 1024", "12 heads of 64", "--fast_attention",
                     "below 9.18.0"));
  EXPECT_THAT(lacks_attention(gpt2(16, 1024), false, "too old"),
              HasAll("has no attention for", Not(HasSubstr("--fast_attention"))));
}

TEST(AttentionWorkspaceTest, TheLimitIsHeldWhereCudnnCanOrItIsEnough) {
  EXPECT_NO_THROW(check_attention_workspace(gpt2(16, 1024), 0, {92500, 9}));
  EXPECT_NO_THROW(check_attention_workspace(gpt2(16, 1024), 384 * kMiB, {91000, 8}));
  for (const CudnnVersion version : {CudnnVersion{92499, 9}, CudnnVersion{92500, 8}}) {
    EXPECT_THAT(error_of<ConfigError>(
                    [&] { check_attention_workspace(gpt2(16, 1024), 384 * kMiB - 1, version); }),
                HasAll("--attention_workspace", "384.0 MiB", "16 x 1024 positions and 12 heads",
                       "smaller micro-batch"));
  }
}

}  // namespace
}  // namespace zerorun::train::cuda
