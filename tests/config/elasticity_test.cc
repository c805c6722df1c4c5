#include "config/elasticity.h"

#include "config/docs/report.h"
#include "tests/common.h"
#include "tests/config/support.h"
#include "tests/paths.h"
#include "tests/scratch.h"

namespace zerorun {
namespace {

std::string elastic(const std::string& keys, const std::string& beside = "") {
  return fmt::format(R"({{{}"elasticity": {{"enabled": true, "max_train_batch_size": 100,)"
                     R"( "micro_batch_sizes": [4, 6], {}}}}})",
                     beside, keys);
}

// make_elasticity.py had them of DeepSpeed itself; where a case has no batch, it refused the ranks.
TEST(Elasticity, IsDeepSpeeds) {
  std::ifstream file(test_paths::tests() + "/config/data/elasticity.json");
  const nlohmann::json cases = nlohmann::json::parse(file).at("cases");
  ASSERT_GT(cases.size(), 100U);
  for (const auto& one : cases) {
    SCOPED_TRACE(one.dump());
    const int ranks = one.at("ranks");
    const ParsedConfig parsed =
        parse_config(nlohmann::json{{"elasticity", one.at("section")}}.dump());
    if (!one.contains("batch")) {
      EXPECT_THAT(error_of<ConfigError>([&] { batch_for(parsed, ranks); }), HasSubstr("got "));
      continue;
    }
    const ElasticBatch batch = elastic_batch(elasticity_of(parsed), ranks);
    EXPECT_EQ(batch.train_batch_size, one.at("batch"));
    EXPECT_EQ(batch.world_sizes, one.at("world_sizes").get<std::vector<int64_t>>());
    const BatchConfig sizes = batch_for(parsed, ranks);
    EXPECT_EQ(sizes.train_batch_size, one.at("batch"));
    EXPECT_EQ(sizes.micro_batch_size, one.at("micro"));
    EXPECT_EQ(sizes.accumulation_steps * sizes.micro_batch_size * ranks, one.at("batch"));
  }
}

TEST(Elasticity, TakesThePlaceOfTheBatchKeys) {
  expect_problem(elastic(R"("version": 0.1)", R"("train_batch_size": 8, )"),
                 "/train_batch_size (1:22): contradicts /elasticity/enabled");
  ParsedConfig parsed = parse_config(elastic(
      R"("version": 0.1, "ignore_non_elastic_batch_info": true)", R"("train_batch_size": 8, )"));
  EXPECT_THAT(parsed.warnings, ElementsAre(HasSubstr("/train_batch_size")));
  resolve_auto(parsed, {.world_size = 2});
  EXPECT_EQ(parsed.config.batch.train_batch_size, 96);
  const std::string shown = show_config(parsed, {.world_size = 2});
  EXPECT_THAT(shown, HasSubstr("\"train_batch_size\": 96,  // inferred"));
  parsed.config.batch = {.micro_batch_size = 4};
  EXPECT_THAT(error_of<ConfigError>([&] { batch_for(parsed, 2); }),
              HasSubstr("the program sets /train_micro_batch_size_per_gpu to 4"));
}

TEST(Elasticity, SaysWhatIsWrongAndWhere) {
  const auto says = [](const std::string& keys, const std::string& what) {
    expect_problem(elastic(keys), what);
  };
  says(R"("version": 0.3)", "/elasticity/version (1:103): got 0.3, expected 0.1 or 0.2");
  says(R"("min_gpus": 9, "max_gpus": 8)", "9 is more than max_gpus, 8");
  says(R"("version": 0.1, "model_parallel_size": 2)", "2 needs version 0.2");
  says(R"("num_gpus_per_node": 3, "model_parallel_size": 2)", "not a multiple");
  EXPECT_THAT(problems_of(R"({"elasticity": {"enabled": true, "micro_batch_sizes": [3000]}})"),
              AllOf(HasSubstr("max_train_batch_size (1:28): missing"),
                    HasSubstr("3000 is more than max_train_batch_size, 2000")));
  const ParsedConfig parsed = parse_config(elastic(R"("version": 0.1)"), "e.json");
  ParsedConfig resolved = parsed;
  EXPECT_THAT(
      error_of<ConfigError>([&] { resolve_auto(resolved, {.world_size = 7}); }),
      HasSubstr("/elasticity/enabled (1:28): elasticity's batch of 96 samples suits 1, 2, 3, 4, 6, "
                "8, 12, 16, 24 ranks, got 7; nearest: 6 or 8"));
}

TEST(Elasticity, IsReported) {
  const Scratch scratch;
  const std::string path = scratch.write("e.json", elastic(R"("version": 0.1)"));
  EXPECT_THAT(check_report(path),
              HasSubstr("elastic batch: 96 samples on 1, 2, 3, 4, 6, 8, 12, 16, 24 ranks\n"));
  EXPECT_THAT(elasticity_report(path, 8),
              AllOf(StartsWith(path + ": elasticity 0.1\n  train_batch_size: 96\n"),
                    HasSubstr("\n  train_micro_batch_size_per_gpu: 6\n")));
  const std::string few =
      scratch.write("few.json", elastic(R"("version": 0.1, "min_gpus": 25, "max_gpus": 26)"));
  EXPECT_THAT(elasticity_report(few, 0), HasSubstr("ranks: none from min_gpus to max_gpus"));
  const std::string off = scratch.write("off.json", "{}");
  EXPECT_THAT(error_of<ConfigError>([&] { elasticity_report(off, 0); }), HasSubstr("not true"));
}

}  // namespace
}  // namespace zerorun
