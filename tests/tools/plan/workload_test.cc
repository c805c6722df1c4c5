#include "tools/plan/workload.h"

#include "tests/common.h"
#include "tests/scratch.h"

namespace zerorun {
namespace {

using testing::Scratch;

// On GPUs in 16 bits; not on CPUs, whose attention takes no memory.
TEST(WorkloadTest, CountsTheMemoryOfAttentionsBackward) {
  PlanOptions options;
  options.model = "gpt2";
  options.micro_batch = 16;
  options.seq_len = 4096;
  const auto activations = [](const PlanOptions& given) {
    const std::string report = plan_report(given);
    const size_t at = report.find("activations");
    return report.substr(at, report.find('\n', at) - at);
  };
  const std::string deterministic = activations(options);
  options.fast_attention = true;
  EXPECT_NE(activations(options), deterministic);
  const Scratch folder;
  options.config = folder.write(
      "fast.json",
      R"({"bf16": {"enabled": true}, "zerorun": {"train": {"fast_attention": true}}})");
  const std::string fast = activations(options);
  options.fast_attention = false;
  EXPECT_EQ(activations(options), fast);
  options.config = folder.write("bf16.json", R"({"bf16": {"enabled": true}})");
  EXPECT_EQ(activations(options), deterministic);
  options.cpu = true;
  const std::string on_cpu = activations(options);
  options.fast_attention = true;
  EXPECT_EQ(activations(options), on_cpu);
}

}  // namespace
}  // namespace zerorun
