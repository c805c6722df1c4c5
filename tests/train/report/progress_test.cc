#include <nlohmann/json.hpp>

#include "tests/train/token_file.h"
#include "train/report/report.h"

namespace zerorun::train::testing {
namespace {

StepReport example(int64_t step) {
  StepReport report;
  report.step = step;
  report.loss = 2.34567;
  report.tokens_per_s = 12345.6;
  report.model_state_bytes = int64_t{7} << 20;
  report.peak_rss_bytes = int64_t{300} << 20;
  return report;
}

TEST(ProgressTest, LineShowsWhatMatters) {
  ProgressOptions options{.last_step = 100};
  EXPECT_THAT(progress_line(example(3), options, 61.2),
              HasAll("step 3/100", "loss 2.3457", "12.3k tokens/s", "300.0 MiB", "7.0 MiB",
                     "ETA 1:02", Not(HasSubstr("optimizer"))));
  options.breakdown = true;
  EXPECT_THAT(progress_line(example(3), options, 4000.0), HasAll("optimizer", "ETA 1:06:40"));
}

std::string printed(const ProgressOptions& options) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const stream = ::open_memstream(&text, &size);
  {
    Progress progress(stream, options);
    for (int64_t step = options.first_step + 1; step <= options.last_step; ++step) {
      progress.report(example(step));
    }
    progress.event("event");
  }
  std::fclose(stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(ProgressTest, AFileGetsAboutTwentyLinesATerminalOneThatIsRewritten) {
  const auto lines = [](const std::string& text) { return std::ranges::count(text, '\n'); };
  EXPECT_NEAR(static_cast<double>(lines(printed({.last_step = 1000}))), 21.5, 1.5);
  const std::string asked = printed({.first_step = 10, .last_step = 30, .steps_per_print = 10});
  EXPECT_EQ(lines(asked), 4) << asked;
  EXPECT_THAT(asked, HasAll("step 11/30", "step 20/30", "step 30/30"));
  const std::string terminal = printed({.last_step = 3, .steps_per_print = 1, .terminal = true});
  EXPECT_EQ(lines(terminal), 2);
  EXPECT_THAT(terminal, HasAll("\rstep 1/3", "\rstep 3/3", "\nevent\n"));
}

TEST(MetricsTest, OneObjectAStepAndTheHashAtTheEnd) {
  const Scratch folder;
  const std::string path = folder.write("m.jsonl", "old\n");
  {
    Metrics metrics(path, Metrics::Mode::replace);
    StepReport report = example(1);
    report.lr = 3e-3F;
    report.grad_norm = std::numeric_limits<double>::infinity();
    report.skipped = true;
    metrics.begin(1, 2, {{"parameters", 7}, {"data", "caf\xe9"}});
    metrics.write(report, {{"memory", {{"optimizer", 8}}}});
    metrics.finish(0xabcU);
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 2, \"lo";  // a run that was killed
  Metrics(path, Metrics::Mode::append).write(example(2), nullptr);
  std::istringstream file(folder.read(path));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false));
  }
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0], nlohmann::json::parse(R"({"zerorun_metrics": 1, "rank": 1, "world_size": 2,
                                                "run": {"parameters": 7, "data": "caf\ufffd"}})"));
  std::set<std::string> keys;
  for (const auto& item : lines[1].items()) keys.insert(item.key());
  EXPECT_EQ(fmt::format("{}", fmt::join(keys, " ")),
            "clip_factor clipped_grad_norm comm_ms data_ms fwd_bwd_ms gather_ms grad_norm "
            "loss loss_scale lr memory mfu model_state_bytes optimizer_ms peak_rss_bytes "
            "reduce_ms samples skipped skipped_steps step step_ms time_s tokens_per_s");
  EXPECT_TRUE(lines[1]["mfu"].is_null());
  EXPECT_EQ(lines[1]["lr"], 0.003);
  EXPECT_EQ(lines[1]["skipped"], true);
  EXPECT_TRUE(lines[1]["grad_norm"].is_null());
  EXPECT_EQ(lines[2]["param_hash"], "0000000000000abc");
  EXPECT_TRUE(lines[3].is_discarded());
  EXPECT_EQ(lines[4]["step"], 2);
}

TEST(MetricsTest, RanksHaveFilesOfTheirOwnButNotBesideADevice) {
  EXPECT_EQ(metrics_path("a/m.x.jsonl", 0), "a/m.x.jsonl");
  EXPECT_EQ(metrics_path("a/m.x.jsonl", 12), "a/m.x.rank12.jsonl");
  EXPECT_EQ(metrics_path("m", 1), "m.rank1");
  EXPECT_EQ(metrics_path("/dev/null", 0), "/dev/null");
  EXPECT_EQ(metrics_path("/dev/null", 1), "");
  EXPECT_ERROR_OF(IoError, Metrics("/proc/none/m.jsonl", Metrics::Mode::replace),
                  "/proc/none/m.jsonl");
}

}  // namespace
}  // namespace zerorun::train::testing
