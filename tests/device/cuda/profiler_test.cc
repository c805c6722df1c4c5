// A step under a profiler shows ranges of the engine's names, pushed and popped in pairs, and the
// streams' names. The profiler is NVTX's own way for one, linked into this program.

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>

#include "tests/zero/cuda/transports.h"

namespace zerorun::testing {
namespace {

// Ranges by thread, as NVTX has them.
class Profiler {
 public:
  static Profiler& instance() {
    static Profiler profiler;
    return profiler;
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    open_.clear();
    ended_.clear();
    streams_.clear();
    unpaired_ = 0;
  }
  int push(const char* name) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string>& open = open_[std::this_thread::get_id()];
    open.emplace_back(name);
    return static_cast<int>(open.size()) - 1;
  }
  int pop() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string>& open = open_[std::this_thread::get_id()];
    if (open.empty()) return ++unpaired_, -1;
    ended_.insert(open.back());
    open.pop_back();
    return static_cast<int>(open.size());
  }
  void name_stream(const char* name) {
    const std::lock_guard lock(mutex_);
    streams_.insert(name);
  }

  // Pushed and not popped, and popped and not pushed.
  int unpaired() const {
    const std::lock_guard lock(mutex_);
    size_t count = static_cast<size_t>(unpaired_);
    for (const auto& [thread, open] : open_) count += open.size();
    return static_cast<int>(count);
  }
  std::set<std::string> ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  std::set<std::string> streams() const {
    const std::lock_guard lock(mutex_);
    return streams_;
  }

 private:
  mutable std::mutex mutex_;  // guards all
  std::map<std::thread::id, std::vector<std::string>> open_;
  std::set<std::string> ended_;
  std::set<std::string> streams_;
  int unpaired_ = 0;
};

int NVTX_API push(const char* name) { return Profiler::instance().push(name); }
int NVTX_API pop() { return Profiler::instance().pop(); }
void NVTX_API name_stream(cudaStream_t /*stream*/, const char* name) {
  Profiler::instance().name_stream(name);
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

class ProfilerTest : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    ASSERT_TRUE(kAttached);
    profiler_.forget();
  }

  // Two ranks' gather, backward and step; how many of them met an error. `before` is called once,
  // when the engines are there.
  int train(
      int stage, const std::function<void()>& before = [] {}) {
    constexpr int kRanks = 2;
    std::barrier ready(kRanks, [&before]() noexcept { before(); });
    fake_.set_devices(kRanks);
    ToyJob job{.limit = std::chrono::seconds(10), .connect = on(Where::nccl)};
    job.config.zero.stage = stage;
    job.config.zero.reduce_bucket_size = 300;
    job.config.zero.overlap_comm = true;
    job.config.zero.param_persistence_threshold = 0;
    std::atomic<int> errors = 0;
    run_engines(job, [&](Engine& engine, Communicator& comm) {
      ready.arrive_and_wait();
      try {
        step(engine);
      } catch (const Error& error) {
        ++errors;
        comm.abort(error.what());
      }
    });
    return errors;
  }

  Profiler& profiler_ = Profiler::instance();

 private:
  static void step(Engine& engine) {
    Device& device = engine.device();
    backward_pass(engine, [&](ParameterId id) {
      device.fill(device.inline_stream(), engine.gradient(id).view, 0.5F);
      if (spec_of(engine, id).alias_of.empty()) engine.grad_ready(id);
    });
    engine.end_micro_step();
    engine.step();
  }
};

TEST_F(ProfilerTest, AStepIsRangesInPairsNamedByKernelsAndBuckets) {
  for (const int stage : {1, 3}) {
    profiler_.forget();
    EXPECT_EQ(train(stage), 0);
    EXPECT_EQ(profiler_.unpaired(), 0) << stage;
    EXPECT_THAT(profiler_.ended(), IsSupersetOf({"fill", "norm", "update"})) << stage;
    EXPECT_THAT(profiler_.ended(), Contains(HasSubstr("h.1."))) << stage;  // of a bucket
    EXPECT_THAT(profiler_.streams(), Contains("zerorun-comm"));
  }
}

TEST_F(ProfilerTest, ErrorsEndTheirRanges) {
  for (const char* call : {"cudaLaunchKernel", "cudaEventRecord", "ncclReduceScatter"}) {
    SetUp();
    EXPECT_GT(train(2, [&] { fake_.fail(call, 3, 3); }), 0) << call;
    EXPECT_FALSE(profiler_.ended().empty());
    EXPECT_EQ(profiler_.unpaired(), 0) << call;
  }
}

}  // namespace
}  // namespace zerorun::testing
#else
TEST(ProfilerTest, SeesRanges) { GTEST_SKIP() << "no NVTX headers: they come with CUDA's toolkit"; }
#endif
