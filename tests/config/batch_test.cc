#include "config/docs/report.h"
#include "config/elasticity.h"
#include "tests/config/support.h"

namespace zerorun {
namespace {

std::string batch_error(const BatchConfig& given, int world_size) {
  return error_of<ConfigError>([&] { resolve_batch(given, world_size); });
}

// The rules as a search: of all triples whose product fits and that agree with what is given, the
// one whose accumulation is smallest where the total or the micro-batch stands alone.
std::optional<BatchConfig> search(const BatchConfig& given, int world_size, int64_t limit) {
  if (given.train_batch_size == 0 && given.micro_batch_size == 0) return std::nullopt;
  const bool is_alone =
      given.accumulation_steps == 0 && (given.train_batch_size == 0 || given.micro_batch_size == 0);
  for (int64_t steps = 1; steps <= limit; ++steps) {
    if (given.accumulation_steps != 0 && steps != given.accumulation_steps) continue;
    if (is_alone && steps != 1) continue;
    for (int64_t micro = 1; micro <= limit; ++micro) {
      if (given.micro_batch_size != 0 && micro != given.micro_batch_size) continue;
      const int64_t total = micro * steps * world_size;
      if (given.train_batch_size != 0 && total != given.train_batch_size) continue;
      return BatchConfig{total, micro, steps};
    }
  }
  return std::nullopt;
}

TEST(ResolveBatch, AgreesWithASearchOverSmallNumbers) {
  constexpr int64_t kLimit = 26;
  for (int world_size = 1; world_size <= 5; ++world_size) {
    for (int64_t total = 0; total <= kLimit; ++total) {
      for (const auto& [micro, steps] : each(std::views::iota(0, 8), std::views::iota(0, 8))) {
        const BatchConfig given{total, micro, steps};
        const std::optional<BatchConfig> expected = search(given, world_size, kLimit);
        const std::string error = batch_error(given, world_size);
        ASSERT_EQ(error.empty(), expected.has_value())
            << total << ' ' << micro << ' ' << steps << ' ' << world_size << ": " << error;
        if (!expected) continue;
        const BatchConfig batch = resolve_batch(given, world_size);
        ASSERT_EQ(batch.train_batch_size, expected->train_batch_size);
        ASSERT_EQ(batch.micro_batch_size, expected->micro_batch_size);
        ASSERT_EQ(batch.accumulation_steps, expected->accumulation_steps);
      }
    }
  }
}

// The settings with one half of an offer ("A 1 (...) or 2 (...)", "A 1, or B 2 with C 3") taken up.
BatchConfig take_up(const BatchConfig& given, std::string_view half) {
  BatchConfig taken = given;
  bool has_name = false;
  for (const auto& [name, member] :
       {std::pair("train_batch_size ", &BatchConfig::train_batch_size),
        {"train_micro_batch_size_per_gpu ", &BatchConfig::micro_batch_size},
        {"gradient_accumulation_steps ", &BatchConfig::accumulation_steps}}) {
    const size_t at = half.find(name);
    if (at == std::string_view::npos) continue;
    taken.*member = std::stoll(std::string(half.substr(at + std::strlen(name))));
    has_name = true;
  }
  if (!has_name) taken.train_batch_size = std::stoll(std::string(half.substr(4)));  // " or 2"
  return taken;
}

int check_offers(const BatchConfig& given, int world_size) {
  const std::string error = batch_error(given, world_size);
  if (error.empty()) return 0;
  const std::string offer = error.substr(error.find("nearest valid: "));
  const size_t middle = offer.find(" or ");
  EXPECT_NE(middle, std::string::npos) << error;
  for (const std::string& half : {offer.substr(0, middle), offer.substr(middle)}) {
    EXPECT_EQ(batch_error(take_up(given, half), world_size), "") << error;
  }
  return 1;
}

TEST(ResolveBatch, OffersSettingsThatAreValid) {
  int checked = 0;
  for (const auto& [world_size, total, micro, steps] :
       each(std::views::iota(1, 5), std::views::iota(1, 21), std::views::iota(0, 6),
            std::views::iota(0, 6))) {
    checked += check_offers({total, micro, steps}, world_size);
  }
  EXPECT_GT(checked, 1000);
}

TEST(ResolveBatch, PrintsEachTermItsSourceAndTheNearestSettings) {
  EXPECT_EQ(batch_error({10, 3, 0}, 2),
            "contradictory batch sizes: train_batch_size 10 (given) is not "
            "train_micro_batch_size_per_gpu 3 (given) x gradient_accumulation_steps 1 (inferred) x "
            "2 ranks = 6; nearest valid: train_batch_size 12 (accumulation 2) or 6 (accumulation "
            "1)");
  EXPECT_THAT(
      batch_error({10, 0, 4}, 1),
      HasSubstr("size_per_gpu 2 (inferred) x gradient_accumulation_steps 4 (given) x 1 rank "
                "= 8; nearest valid: train_batch_size 8 (micro-batch 2) or 12"));
  EXPECT_THAT(batch_error({16, 2, 2}, 2), HasSubstr("nearest valid: train_batch_size 8, or "
                                                    "gradient_accumulation_steps 4"));
  EXPECT_THAT(batch_error({7, 4, 3}, 2),
              HasSubstr("train_batch_size 24, or train_batch_size 8 with "
                        "gradient_accumulation_steps 1"));
}

TEST(ResolveBatch, RejectsWhatIsNoCount) {
  EXPECT_THAT(batch_error({}, 2), HasSubstr("neither train_batch_size nor "
                                            "train_micro_batch_size_per_gpu is given; set one"));
  EXPECT_THAT(batch_error({0, 0, 4}, 2), HasSubstr("only gradient_accumulation_steps 4; set one"));
  EXPECT_THAT(batch_error({-8, 0, 0}, 2), HasSubstr("train_batch_size is -8, expected at least 1"));
  EXPECT_THAT(batch_error({0, -1, 0}, 2), HasSubstr("train_micro_batch_size_per_gpu is -1"));
  EXPECT_THAT(batch_error({8, 0, -2}, 2), HasSubstr("gradient_accumulation_steps is -2"));
  EXPECT_THAT(batch_error({8, 0, 0}, 0), HasSubstr("world size 0"));
}

TEST(ResolveBatch, ContradictionsInAFileNameFileKeyAndPosition) {
  const auto expect = [](std::string_view json, const std::string& message) {
    ParsedConfig parsed = parse_config(json, "ds.json");
    EXPECT_ERROR_OF(ConfigError, resolve_auto(parsed, {.world_size = 2}),
                    StartsWith("ds.json: 1 problem\n  1. " + message))
        << json;
  };
  expect("{\n  \"train_micro_batch_size_per_gpu\": 3,\n  \"train_batch_size\": 10}",
         "/train_batch_size (3:23): contradictory batch sizes: ");
  expect("{\"train_micro_batch_size_per_gpu\": 9223372036854775807}",
         "/train_micro_batch_size_per_gpu (1:36): batch sizes: ");
}

TEST(ResolveBatch, SurvivesTheLargestNumbers) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const auto& [total, micro, steps, ranks] :
       each(std::array{int64_t{0}, int64_t{1}, kMax - 1, kMax},
            std::array{int64_t{0}, int64_t{1}, kMax / 2, kMax},
            std::array{int64_t{0}, int64_t{1}, kMax},
            std::array{1, 3, std::numeric_limits<int>::max()})) {
    if (!batch_error({total, micro, steps}, ranks).empty()) continue;
    const BatchConfig batch = resolve_batch({total, micro, steps}, ranks);
    EXPECT_EQ(batch.train_batch_size / batch.micro_batch_size / batch.accumulation_steps, ranks);
  }
  EXPECT_THAT(batch_error({0, kMax, 2}, 1), HasSubstr("more than 2^63"));
}

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
      EXPECT_ERROR_OF(ConfigError, batch_for(parsed, ranks), "got ");
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
  EXPECT_ERROR_OF(ConfigError, batch_for(parsed, 2),
                  "the program sets /train_micro_batch_size_per_gpu to 4");
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
              HasAll("max_train_batch_size (1:28): missing",
                     "3000 is more than max_train_batch_size, 2000"));
  const ParsedConfig parsed = parse_config(elastic(R"("version": 0.1)"), "e.json");
  ParsedConfig resolved = parsed;
  EXPECT_ERROR_OF(
      ConfigError, resolve_auto(resolved, {.world_size = 7}),
      "/elasticity/enabled (1:28): elasticity's batch of 96 samples suits 1, 2, 3, 4, 6, "
      "8, 12, 16, 24 ranks, got 7; nearest: 6 or 8");
}

TEST(Elasticity, IsReported) {
  const Scratch scratch;
  const std::string path = scratch.write("e.json", elastic(R"("version": 0.1)"));
  EXPECT_THAT(check_report(path),
              HasSubstr("elastic batch: 96 samples on 1, 2, 3, 4, 6, 8, 12, 16, 24 ranks\n"));
  EXPECT_THAT(elasticity_report(path, 8),
              HasAll(StartsWith(path + ": elasticity 0.1\n  train_batch_size: 96\n"),
                     "\n  train_micro_batch_size_per_gpu: 6\n"));
  const std::string few =
      scratch.write("few.json", elastic(R"("version": 0.1, "min_gpus": 25, "max_gpus": 26)"));
  EXPECT_THAT(elasticity_report(few, 0), HasSubstr("ranks: none from min_gpus to max_gpus"));
  const std::string off = scratch.write("off.json", "{}");
  EXPECT_ERROR_OF(ConfigError, elasticity_report(off, 0), "not true");
}

}  // namespace
}  // namespace zerorun
