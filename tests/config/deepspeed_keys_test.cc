#include "config/json/json_tree.h"
#include "tests/common.h"
#include "tests/config/support.h"
#include "tests/paths.h"

namespace zerorun {
namespace {

// JSON text in the table's spelling: 1e9 and 1000000000 are the same.
std::string canonical(const nlohmann::json& value) {
  ConfigProblems problems("value");
  const std::optional<JsonNode> node = read_json(value.dump(), problems);
  return node ? to_text(*node) : "unreadable";
}

// make_deepspeed_keys.py reads the keys out of DeepSpeed.
TEST(DeepSpeedKeys, AreAllInTheTableWithTheirDefaults) {
  std::ifstream file(test_paths::tests() + "/config/data/deepspeed_keys.json");
  const nlohmann::json keys = nlohmann::json::parse(file).at("keys");
  ASSERT_GT(keys.size(), 150U);
  for (const auto& [pointer, fallback] : keys.items()) {
    const KeySpec* spec = key_table().find(pointer);
    EXPECT_NE(spec, nullptr) << pointer << " is not in the table";
    if (spec == nullptr) continue;
    // A deprecated key that is not given asks for nothing, and neither does false.
    if (spec->is_block() || spec->status == KeyStatus::deprecated) continue;
    EXPECT_EQ(spec->fallback, canonical(fallback)) << pointer;
  }
}

}  // namespace
}  // namespace zerorun
