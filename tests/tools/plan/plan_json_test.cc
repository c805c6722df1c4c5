
#include <nlohmann/json.hpp>

#include "tests/common.h"
#include "tools/plan/plan.h"
#include "tools/plan/plan_setting.h"

namespace zerorun {
namespace {

TEST(PlanJson, ItSaysWhatTheTableSays) {
  const PlanOptions options{.model = "7B", .world_size = 8, .device_memory = "40GiB", .json = true};
  const auto settings = nlohmann::json::parse(plan_report(options))["settings"];
  ASSERT_EQ(settings.size(), all_settings().size());
  for (const auto& one : settings) {
    EXPECT_EQ(one["fits"], one["device_bytes"] <= int64_t{40} << 30) << one;
  }
  EXPECT_EQ(settings[0]["setting"], "stage 1");
}

}  // namespace
}  // namespace zerorun
