// A step under a profiler shows ranges of the engine's names, pushed and popped in pairs, and the
// streams' names. The profiler is NVTX's own way for one, linked into this program.

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>

#include "tests/zero/cuda/transports.h"

namespace zerorun::testing {
namespace {

// What a profiler sees: ranges by thread, as NVTX has them.
struct Profile {
  std::map<std::thread::id, std::vector<std::string>> open;
  std::set<std::string> ended;
  std::set<std::string> streams;
  int unpushed = 0;  // and popped
};
std::mutex profile_mutex;
Profile profile_now;  // guarded by the mutex

// What was seen since the last call.
Profile take_profile() {
  const std::lock_guard lock(profile_mutex);
  return std::exchange(profile_now, {});
}

int NVTX_API push(const char* name) {
  const std::lock_guard lock(profile_mutex);
  std::vector<std::string>& open = profile_now.open[std::this_thread::get_id()];
  open.emplace_back(name);
  return static_cast<int>(open.size()) - 1;
}
int NVTX_API pop() {
  const std::lock_guard lock(profile_mutex);
  std::vector<std::string>& open = profile_now.open[std::this_thread::get_id()];
  if (open.empty()) {
    ++profile_now.unpushed;
    return -1;
  }
  profile_now.ended.insert(open.back());
  open.pop_back();
  return static_cast<int>(open.size());
}
void NVTX_API name_stream(cudaStream_t /*stream*/, const char* name) {
  const std::lock_guard lock(profile_mutex);
  profile_now.streams.insert(name);
}

template <typename Function>
void take_over(const NvtxExportTableCallbacks& callbacks, NvtxCallbackModule module, int id,
               Function* function) {
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  callbacks.GetModuleFunctionTable(module, &table, &size);
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

// NVTX calls it at the program's first range.
int attach(NvtxGetExportTableFunc_t tables) {
  const auto& callbacks =
      *static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
  take_over(callbacks, NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePushA, &push);
  take_over(callbacks, NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePop, &pop);
  take_over(callbacks, NVTX_CB_MODULE_CUDART, NVTX_CBID_CUDART_NameCudaStreamA, &name_stream);
  return 1;
}

// Before the first test. What NVTX has for a profiler that is linked into its program.
const bool kAttached = (InitializeInjectionNvtx2_fnptr = &attach) != nullptr;

struct ProfilerTest : FakeCudaTest {
  void SetUp() override {
    FakeCudaTest::SetUp();
    ASSERT_TRUE(kAttached);
    take_profile();
  }

  // Two ranks' gather, backward and step; how many of them met an error. `before` is called once,
  // when the engines are there.
  int train(
      int stage, const std::function<void()>& before = [] {}) {
    constexpr int kRanks = 2;
    std::barrier ready(kRanks, [&before]() noexcept { before(); });
    fake_.set_devices(kRanks);
    ToyJob job{.limit = 10s, .connect = on(Where::nccl)};
    job.config.zero.stage = stage;
    job.config.zero.reduce_bucket_size = 300;
    job.config.zero.overlap_comm = true;
    job.config.zero.param_persistence_threshold = 0;
    std::atomic<int> errors = 0;
    run_engines(job, [&](Engine& engine, Communicator& comm) {
      ready.arrive_and_wait();
      try {
        Device& device = engine.device();
        backward_pass(engine, [&](ParameterId id) {
          device.fill(device.inline_stream(), engine.gradient(id).view, 0.5F);
          if (spec_of(engine, id).alias_of.empty()) engine.grad_ready(id);
        });
        engine.end_micro_step();
        engine.step();
      } catch (const Error& error) {
        ++errors;
        comm.abort(error.what());
      }
    });
    return errors;
  }
};

void expect_pairs(const Profile& found) {
  EXPECT_EQ(found.unpushed, 0);
  for (const auto& [thread, open] : found.open) EXPECT_THAT(open, IsEmpty());
}

TEST_F(ProfilerTest, AStepIsRangesInPairsNamedByKernelsAndBuckets) {
  for (const int stage : {1, 3}) {
    EXPECT_EQ(train(stage), 0);
    const Profile found = take_profile();
    expect_pairs(found);
    EXPECT_THAT(found.ended, IsSupersetOf({"fill", "norm", "update"})) << stage;
    EXPECT_THAT(found.ended, Contains(HasSubstr("h.1."))) << stage;  // of a bucket
    EXPECT_THAT(found.streams, Contains("zerorun-comm"));
  }
}

TEST_F(ProfilerTest, ErrorsEndTheirRanges) {
  for (const char* call : {"cudaLaunchKernel", "cudaEventRecord", "ncclReduceScatter"}) {
    SetUp();
    EXPECT_GT(train(2, [&] { fake_.fail(call, 3, 3); }), 0) << call;
    const Profile found = take_profile();
    EXPECT_FALSE(found.ended.empty());
    expect_pairs(found);
  }
}

}  // namespace
}  // namespace zerorun::testing
#else
TEST(ProfilerTest, SeesRanges) { GTEST_SKIP() << "no NVTX headers: they come with CUDA's toolkit"; }
#endif
