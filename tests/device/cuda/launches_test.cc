// How many kernels updates and norms launch: one for what many segments ask for, whatever the
// optimizer and the dtypes.

#include "tests/zero/cuda/transports.h"
#include "zerorun/exact_sum.h"

namespace zerorun::testing {
namespace {

using fake::FakeCuda;

// Kernels whose parameters have `type` in their names.
int launches_of(const std::string& type) {
  int count = 0;
  for (const auto& [kernel, launches] : FakeCuda::instance().launches()) {
    if (kernel.find(type) != std::string::npos) count += launches;
  }
  return count;
}
int updates() { return launches_of("RuleSegment<"); }
int norms() { return launches_of("SquaresSegment"); }

// One thread writes what all read, as in a kernel without a barrier, or with one. Returns how many
// read something else, in two launches.
int stale_reads(const std::function<void()>& meet) {
  int stale = 0;
  for (const int value : {1, 2}) {
    fake::run_grid(1, 64, [&] {
      __shared__ int written;
      if (threadIdx.x == 0) written = value;
      meet();
      stale += written == value ? 0 : 1;
    });
  }
  return stale;
}

// Threads run one after the other, in either order: a barrier that is missing shows in one of them.
TEST(EmulationTest, AMissingBarrierShows) {
  EXPECT_EQ(stale_reads([] { __syncthreads(); }), 0);
  EXPECT_EQ(stale_reads([] {}), 63);
}

class LaunchesTest : public FakeCudaTest {};

TEST_F(LaunchesTest, OneKernelCopiesDozensOfTensors) {
  CudaDevice device(0, 0);
  Stream& stream = device.inline_stream();
  constexpr int64_t kTensors = 100;
  const Buffer buffer = device.allocate(2 * kTensors * sizeof(float), MemoryCategory::other);
  const TensorView all = view_of(buffer, DType::fp32, 2 * kTensors);
  device.fill(stream, all, 1.0F);
  std::vector<TensorCopy> copies;
  for (int64_t i = 0; i < kTensors; ++i) {
    copies.push_back({all.slice(i, 1), all.slice(kTensors + i, 1), i % 2 == 0});
  }
  const int before = fake_.counts().at("cudaLaunchKernel");
  device.copy(stream, copies);
  EXPECT_EQ(fake_.counts().at("cudaLaunchKernel") - before, 1);
  EXPECT_FALSE(fake_.counts().contains("cudaMemcpyAsync"));
  stream.synchronize();
}

struct SegmentsOutcome {
  int updates = 0;
  int norms = 0;
};

// `count` segments of ones that one call updates, and whose norm one takes: none is left out.
SegmentsOutcome run_segments(int64_t count) {
  FakeCuda::instance().reset();
  CudaDevice device(0, 0);
  Stream& stream = device.inline_stream();
  const auto nbytes = static_cast<size_t>(count) * sizeof(float);
  const Buffer values = device.allocate(nbytes, MemoryCategory::other);
  const Buffer ones = device.allocate(nbytes, MemoryCategory::other);
  const Buffer words = device.allocate(ExactSum::kWords * sizeof(int64_t), MemoryCategory::other);
  const TensorView master = view_of(values, DType::fp32, count);
  const TensorView grad = view_of(ones, DType::fp32, count);
  const TensorView sum = view_of(words, DType::int64, ExactSum::kWords);
  device.fill(stream, master, 1.0F);
  device.fill(stream, grad, 1.0F);
  device.fill(stream, sum, 0.0F);
  std::vector<UpdateSegment> segments;
  std::vector<SquaresSegment> squares;
  for (int64_t i = 0; i < count; ++i) {
    segments.push_back({.begin = i, .numel = 1, .scalars = {.rule = UpdateRule::sgd, .lr = 0.5F}});
    squares.push_back({.begin = i, .numel = 1});
  }
  const std::map<std::string, int> before = FakeCuda::instance().counts();
  device.update(stream, {.master = master, .grad = grad, .param = master}, segments);
  device.sum_of_squares(stream, grad, squares, sum);
  // Segments travel with the launch: nothing but the current device is asked for besides.
  std::map<std::string, int> more = FakeCuda::instance().counts();
  for (auto& [name, calls] : more) calls -= before.contains(name) ? before.at(name) : 0;
  EXPECT_EQ(more.at("cudaLaunchKernel"), updates() + norms());
  for (const auto& [name, calls] : more) {
    if (name == "cudaLaunchKernel" || name.ends_with("Device")) continue;
    EXPECT_EQ(calls, 0) << name;
  }
  std::vector<float> updated(static_cast<size_t>(count));
  std::vector<int64_t> found(ExactSum::kWords);
  device.download(stream, master, updated.data());
  device.download(stream, sum, found.data());
  stream.synchronize();
  EXPECT_THAT(updated, ::testing::Each(0.5F)) << count;
  EXPECT_EQ(ExactSum::from_words(found).value(), static_cast<double>(count));
  return {.updates = updates(), .norms = norms()};
}

TEST_F(LaunchesTest, OneKernelTakesDozensOfSegments) {
  for (const int64_t count : {1, 2, 40, 400}) {
    const SegmentsOutcome found = run_segments(count);
    EXPECT_LE(found.updates, 1 + (count - 1) / 40);
    EXPECT_LE(found.norms, 1 + (count - 1) / 100);
    EXPECT_EQ(found.updates > 1, count == 400);
  }
}

// Two ranks; each bucket has many parameters, and is one chunk.
struct StepLaunchesTest : FakeCudaTest, ::testing::WithParamInterface<Rule> {
  static constexpr int kRanks = 2;

  void SetUp() override {
    FakeCudaTest::SetUp();
    fake_.set_inline_streams(true);
    fake_.set_devices(kRanks);
  }

  static Config config() {
    Config config = gathering_config(2, DType::bf16);
    GetParam().set(config);
    config.optimizer.momentum = 0.9;
    return config;
  }

  // Parameters of odd sizes, in two groups by turns: no two neighbours take the same step.
  static std::vector<ParameterSpec> specs() {
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < kParameters; ++i) {
      const std::string name = "p." + std::to_string(i);
      specs.push_back({name, {3 + i % 5, 37}, "all", i % 2, true, "", i % 4 < 2});
    }
    return specs;
  }

  static constexpr int kParameters = 80;
};

TEST_P(StepLaunchesTest, AreOneForEachChunkAndPass) {
  const ToyJob job{
      .config = config(), .ranks = kRanks, .specs = specs(), .connect = on(Where::nccl)};
  run_engines(job, [](Engine& engine, Communicator&) {
    for (int id = kParameters; id-- > 0;) give_gradient(engine, id, 0.25F);
    engine.end_micro_step();
    EXPECT_TRUE(engine.step().applied);
  });
  // All ranks'; a reduction for each bucket, of which each rank has a chunk.
  const int chunks = fake_.counts().at("ncclReduceScatter");
  EXPECT_GE(chunks, 2 * kRanks);
  EXPECT_LT(chunks, kRanks * kParameters / 4);
  if (GetParam().type == "Lamb") {
    EXPECT_EQ(updates(), 2 * chunks);
    EXPECT_EQ(norms(), 3 * chunks);  // gradients, parameters and directions
  } else if (GetParam().type == "Muon") {
    EXPECT_GT(updates(), chunks);
    EXPECT_LT(updates(), 2 * chunks);  // those of matrices have two
  } else {
    EXPECT_EQ(updates(), chunks);
    EXPECT_EQ(norms(), chunks);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, StepLaunchesTest,
                         ::testing::Values(Rule{"AdamW"}, Rule{"AdamW", true, DType::bf16},
                                           Rule{"AdamW8bit"}, Rule{"SGD"}, Rule{"Adagrad"},
                                           Rule{"Lion"}, Rule{"Lamb", true, DType::bf16},
                                           Rule{"Muon", true, DType::bf16}),
                         name_of_rule);

}  // namespace
}  // namespace zerorun::testing
