#pragma once

#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/harness.h"

namespace zerorun::testing {

// A run on ranks that are threads, on fake CUDA libraries, in which each entry point is made to
// fail. Whatever fails, every rank ends with a typed error or with what it should have computed,
// soon, and leaves nothing behind; and a run afterwards computes the same.
class FailingCalls {
 public:
  // One rank's whole run, which makes all that it needs; a hash of what it computed.
  using Body = std::function<uint64_t(int rank, const std::shared_ptr<Store>& store)>;

  FailingCalls(std::string name, int ranks, Body body)
      : name_(std::move(name)), ranks_(ranks), body_(std::move(body)) {}

  // No call of a rank may wait for peers longer: a run that needs this hangs.
  static constexpr std::chrono::milliseconds kDeadline = 60s;

  enum class Which { first, middle, last };

  // Fails one call of each entry point; how many did.
  int fail_each(Which which) {
    expected_ = expect_success();
    int failures = 0;
    for (const auto& [function, count] : fake_.counts()) {
      if (function.starts_with('(')) continue;  // no call
      failures += fail(function, which == Which::first    ? 0
                                 : which == Which::middle ? count / 2
                                                          : count - 1);
      if (::testing::Test::HasFailure()) return failures;  // what follows would say the same
    }
    EXPECT_EQ(expect_success(), expected_) << name_ << " afterwards";
    return failures;
  }

 private:
  struct Result {
    uint64_t hash = 0;
    std::exception_ptr error;
  };

  std::vector<Result> run() {
    constexpr auto kSoon = 20s;
    std::vector<Result> results(static_cast<size_t>(ranks_));
    const auto store = make_memory_store();
    const auto begin = std::chrono::steady_clock::now();
    run_threads(ranks_, [&](int rank) {
      Result& result = results[static_cast<size_t>(rank)];
      try {
        result.hash = body_(rank, store);
      } catch (...) {
        result.error = std::current_exception();
      }
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon) << name_;
    expect_clean();
    return results;
  }

  uint64_t expect_success() {
    fake_.reset();
    fake_.set_devices(ranks_);
    const std::vector<Result> results = run();
    for (const Result& result : results) {
      EXPECT_EQ(text_of(result.error), "") << name_;
      EXPECT_EQ(result.hash, results.front().hash) << name_;
    }
    return results.front().hash;
  }

  int fail(const std::string& function, int nth) {
    SCOPED_TRACE(name_ + ", call " + std::to_string(nth) + " of " + function);
    fake_.reset();
    fake_.set_devices(ranks_);
    fake_.fail(function, nth, error_of(function));
    const std::vector<Result> results = run();
    std::string texts;
    for (const Result& result : results) {
      if (result.error) {
        texts += text_of(result.error) + "\n";
      } else if (!function.ends_with("GetHeuristic")) {  // another kernel, which rounds otherwise
        EXPECT_EQ(result.hash, expected_) << "without an error; the other rank's: " << texts;
      }
    }
    if (fake_.failures() == 0) {  // how often it is called depends on timing
      EXPECT_EQ(texts, "");
    } else if (must_tell(function)) {
      EXPECT_THAT(texts, ContainsRegex(said_of(function)));
    }
    return fake_.failures();
  }

  // A value of the library's own type of errors.
  static int error_of(const std::string& function) {
    if (function.starts_with("cublas")) return 7;  // CUBLAS_STATUS_INVALID_VALUE
    return function.starts_with("cuda") ? static_cast<int>(cudaErrorUnknown) : 2;
  }

  // True if a failure is an error: not of functions that give back, only look or help others, or
  // can be done without. Waits are some of each: the last ones are for what is given back.
  static bool must_tell(const std::string& function) {
    constexpr auto kEnds = std::to_array<const char*>(
        {"Destroy", "Destroy_v2", "FreeAsync", "MemFree", "Abort", "Finalize", "Deregister",
         "FreeHost", "TrimTo", "CaptureMode", "EventQuery", "SetDevice", "GetDevice",
         "GetAsyncError", "GetHeuristic", "EntryPointByVersion", "MemAlloc", "CommRegister",
         "Synchronize"});
    return std::ranges::none_of(kEnds, [&](const char* end) { return function.ends_with(end); });
  }

  // Fails the test unless the error is one that a caller can act on.
  static std::string text_of(const std::exception_ptr& error) {
    if (!error) return "";
    try {
      std::rethrow_exception(error);
    } catch (const CommError& typed) {
      return typed.what();
    } catch (const DeviceError& typed) {
      return typed.what();
    } catch (const std::exception& other) {
      ADD_FAILURE() << "not a typed error: " << other.what();
      return other.what();
    }
  }

  // The error's text if it is not the function's own name.
  static std::string said_of(const std::string& function) {
    static const std::map<std::string, std::string> texts = {
        {"cudaLaunchKernel", "kernel"},
        {"cudaMemPoolCreate", "memory pool"},
        {"cudaMemPoolSetAttribute", "memory pool"},
        {"ncclAllGather", "all_gather"},
        {"ncclAllReduce", "all_reduce|barrier"},
        {"ncclBroadcast", "broadcast"},
        {"ncclGroupEnd", "all_gather"},
        {"ncclGroupStart", "all_gather"},
        {"ncclReduceScatter", "reduce_scatter"},
    };
    const auto found = texts.find(function);
    return found == texts.end() ? function.substr(0, function.find("_v2")) : found->second;
  }

  const std::string name_;
  const int ranks_;
  const Body body_;
  fake::FakeCuda& fake_ = fake::FakeCuda::instance();
  uint64_t expected_ = 0;
};

}  // namespace zerorun::testing
