// Few functions are between a call of the engine and its collective, and ARCHITECTURE.md names
// them.
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/check.h"
#include "tests/paths.h"
#include "tests/zero/offload_config.h"
#include "tests/zero/toy_run.h"
#include "tests/zero/wrapped_communicator.h"

namespace zerorun::call_path {
namespace {

using testing::base_config;
using testing::run_ranks;
using testing::toy_initialize;
using testing::toy_specs;
using testing::ToyModel;
using testing::WrappedCommunicator;

using Frames = std::vector<void*>;

// Return addresses, from the caller's on outwards.
[[gnu::noinline]] Frames stack() {
  Frames frames(128);
  frames.resize(static_cast<size_t>(backtrace(frames.data(), static_cast<int>(frames.size()))));
  frames.erase(frames.begin());  // of this function
  return frames;
}

// Remembers the stack of the last collective of each kind.
class WatchedCommunicator final : public WrappedCommunicator {
 public:
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

// The functions around an address, innermost first, as addr2line knows them: with debugging
// information those that were inlined too. "EngineImpl::grad_ready".
std::vector<std::string> functions_at(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0) return {};
  const auto offset =
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(info.dli_fbase) - 1;
  const std::string command =
      fmt::format("addr2line -Cfi -e /proc/{}/exe {:#x} 2>/dev/null", getpid(), offset);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::vector<std::string> functions;
  std::array<char, 4096> line{};
  for (bool name = true; fgets(line.data(), line.size(), pipe.get()) != nullptr; name = !name) {
    if (!name) continue;  // a line of file and place
    std::string text = line.data();
    for (const std::string part :
         {"(anonymous namespace)::", "zerorun::", "testing::", "Wrapped"}) {
      for (size_t at = 0; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
    }
    text = text.substr(0, text.find_first_of("(\n"));
    if (text.find_first_of(" <") == std::string::npos) functions.push_back(text);  // no template's
  }
  return functions;
}

// True for the standard library's: it calls a std::function's content, in a build that does not
// inline it.
bool is_library(const std::string& function) {
  return function.starts_with("std::") || function == "_M_invoke";
}

std::string section(const std::string& title) {
  std::ifstream file(test_paths::tests() + "/../ARCHITECTURE.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const size_t begin = all.find("## " + title + "\n");
  ZR_CHECK(begin != std::string::npos, "ARCHITECTURE.md has no section '{}'", title);
  return all.substr(begin, all.find("\n## ", begin + 1) - begin);
}

// `frames` of a collective that a function with a stack of `caller` frames asked for: at most
// `limit` functions, the collective included, and all that addr2line knows are named in that
// section, in their order. A build that inlines has fewer, one with debugging information names
// those too.
void expect_path(const Frames& frames, size_t caller, size_t limit, const std::string& title) {
  ASSERT_GT(frames.size(), caller) << "no collective";
  const size_t between = frames.size() - caller;
  size_t own = 1;  // with the collective
  const std::string text = section(title);
  size_t at = 0;
  for (size_t i = between; i-- > 1;) {  // from the outermost on; 0 is this test's communicator
    std::vector<std::string> functions = functions_at(frames[i]);
    std::reverse(functions.begin(), functions.end());
    if (functions.empty() || !std::all_of(functions.begin(), functions.end(), is_library)) ++own;
    for (const std::string& function : functions) {
      if (is_library(function) || function.find("operator") != std::string::npos) continue;
      // Under AddressSanitizer backtrace() has a frame of its own before these.
      if (function.starts_with("call_path::")) continue;
      const size_t found = text.find(function, at);
      EXPECT_NE(found, std::string::npos) << function << " is not in its place in: " << text;
      if (found != std::string::npos) at = found;
    }
  }
  EXPECT_LE(own, limit) << title;
}

class CallPathTest : public ::testing::TestWithParam<int> {
 protected:
  static void with_engine(const std::function<void(Engine&, WatchedCommunicator&)>& body) {
    run_ranks(2, [&](Communicator& comm) {
      WatchedCommunicator watched(comm);
      const auto device = make_cpu_device();
      Config config = base_config(GetParam(), DType::fp32);
      config.share_parameters = false;
      config.zero.param_persistence_threshold = 0;
      const auto engine = Engine::create(config, *device, watched, toy_specs(), ToyModel::groups());
      toy_initialize(*engine);
      watched.frames.clear();
      body(*engine, watched);
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
    const size_t caller = stack().size();
    engine.contribute(id, view_of(std::span<float>(values)));
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
