#include "config/json/reader.h"

#include "tests/common.h"
#include "tests/config/support.h"

namespace zerorun {
namespace {

using testing::nested;
using testing::problems_of;

TEST(ConfigReader, WhatIsForPyTorchModelsIsAnErrorForProgramsInCpp) {
  for (const auto& [pointer, value] :
       {std::pair("/sequence_parallel_size", "2"), std::pair("/data_parallel_size", "1"),
        std::pair("/torch_autocast/enabled", "true"),
        std::pair("/managed_gradient_accumulation", "false")}) {
    const std::string text = nested(pointer, value);
    EXPECT_THAT(problems_of(text), HasSubstr(fmt::format("{} (", pointer)));
    EXPECT_THAT(problems_of(text), HasSubstr("for PyTorch models (zerorun.initialize) only"));
    const ParsedConfig parsed = parse_config_for(ConfigReader::pytorch, text, "test.json");
    EXPECT_EQ(testing::find_value(parsed, pointer)->value, value);
  }
  EXPECT_EQ(problems_of(R"({"torch_autocast": {"enabled": false, "dtype": "float16"}})"), "");
  EXPECT_EQ(problems_of(R"({"seq_parallel_communication_data_type": "bf16"})"), "");
  EXPECT_EQ(problems_of(R"({"sequence_parallel_size": 1})"), "");
}

}  // namespace
}  // namespace zerorun
