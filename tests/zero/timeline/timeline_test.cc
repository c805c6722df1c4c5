// What an engine does when: in a file, and in sums.
#include "zerorun/timeline.h"

#include <nlohmann/json.hpp>

#include "tests/zero/toy_run.h"
#include "zero/timeline/span_log.h"

namespace zerorun::testing::timeline {
namespace {

LoggedSpan span(SpanKind kind, double begin, double end) {
  return {.kind = kind, .row = "row", .name = "name", .begin_s = begin, .end_s = end};
}

TEST(HiddenPartsTest, WaitsAndTimeWithoutComputationAreNotHidden) {
  const std::vector<LoggedSpan> spans = {
      span(SpanKind::compute, 0, 6), span(SpanKind::compute, 1, 3),  // nested
      span(SpanKind::wait, 4, 5),    span(SpanKind::reduction, 2, 5),
      span(SpanKind::gather, 5, 7),  span(SpanKind::gather, 6, 9),
  };
  const HiddenParts hidden = hidden_parts(spans);
  EXPECT_DOUBLE_EQ(hidden.reductions.value(), 2.0 / 3.0);  // [2, 4) of [2, 5)
  EXPECT_DOUBLE_EQ(hidden.gathers.value(), 1.0 / 4.0);     // [5, 6) of [5, 9)
  EXPECT_FALSE(hidden_parts({span(SpanKind::compute, 0, 1)}).reductions);
}

TEST(SpanLogTest, ItHasRoomForSoManySpansAndCountsTheRest) {
  SpanLog log;
  log.add(span(SpanKind::compute, 0, 1));  // not open yet
  log.open();
  for (size_t i = 0; i < SpanLog::kMaxSpans + 3; ++i) log.add(span(SpanKind::compute, 0, 1));
  const SpanLog::Content content = log.take();
  EXPECT_EQ(content.spans.size(), SpanLog::kMaxSpans);
  EXPECT_EQ(content.dropped, 3);
  EXPECT_FALSE(log.is_open());
}

struct TimelineTest : ::testing::Test {
  // Takes steps, with forward and backward as one span each; returns what rank 0 was told.
  std::string run(const Config& config, int world_size, int64_t steps, int64_t first,
                  int64_t last) const {
    std::string told;
    run_engines({config, world_size}, [&](Engine& engine, Communicator& comm) {
      const auto timeline = Timeline::create(engine, comm, {path_, first, last}, 0);
      std::string line;
      for (int64_t step = 1; step <= steps; ++step) {
        const double begin = steady_seconds();
        ToyModel::micro_step(engine, comm.rank(), 0, step);
        timeline->add("forward and backward", "toy", begin, steady_seconds());
        engine.step();
        line += timeline->end_step(step);
      }
      line += timeline->finish();
      if (comm.rank() == 0) {
        told = line;
      } else {
        EXPECT_EQ(line, "");
      }
    });
    return told;
  }

  nlohmann::json read() const { return nlohmann::json::parse(std::ifstream(path_)); }

  const Scratch scratch_;
  const std::string path_ = scratch_.path() / "timeline.json";
};

// The names of the spans of a rank, with how often they are there.
std::map<std::string, int> names_of(const nlohmann::json& trace, int rank) {
  std::map<std::string, int> names;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["pid"] == rank) ++names[event["name"].get<std::string>()];
  }
  return names;
}

TEST_F(TimelineTest, EveryRanksWorkOfTheStepsIsInTheFile) {
  const Config config = base_config(2);
  EXPECT_THAT(run(config, 2, 5, 2, 3), HasSubstr("timeline of steps 2 to 3 in " + path_));
  const nlohmann::json trace = read();
  EXPECT_EQ(trace["otherData"]["steps"], nlohmann::json({2, 3}));
  EXPECT_EQ(trace["otherData"]["dropped_events"], 0);
  for (int rank = 0; rank < 2; ++rank) {
    const std::map<std::string, int> names = names_of(trace, rank);
    EXPECT_EQ(names.at("step 2"), 1);
    EXPECT_EQ(names.at("step 3"), 1);
    EXPECT_FALSE(names.contains("step 1"));
    EXPECT_EQ(names.at("forward and backward"), 2);
    EXPECT_EQ(names.at("reduce_scatter") % 2, 0);
    EXPECT_EQ(names.at("reduce_scatter"), names.at("all_gather"));
    EXPECT_GE(names.at("update"), 2);
    const double hidden = trace["otherData"]["hidden"][static_cast<size_t>(rank)]["reductions"];
    EXPECT_TRUE(hidden >= 0.0 && hidden <= 1.0) << hidden;
  }
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["ts"], 0);
    EXPECT_GE(event["dur"], 0);
    if (event["name"] == "reduce_scatter") {
      EXPECT_THAT(event["args"]["of"].get<std::string>(), HasSubstr("bucket"));
      EXPECT_GT(event["args"]["bytes"], 0);
    }
  }
}

TEST_F(TimelineTest, StreamsOfAnOffloadedStepHaveRowsOfTheirOwn) {
  run(offloaded(base_config(2), 1.0, OffloadDevice::nvme), 2, 2, 1, 2);
  const nlohmann::json trace = read();
  std::set<std::string> rows;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") rows.insert(event["args"]["name"].get<std::string>());
  }
  EXPECT_THAT(rows,
              IsSupersetOf({"steps", "program", "host", "read", "write", "reductions", "gathers"}));
}

TEST_F(TimelineTest, ATrainingThatEndsEarlyLeavesWhatThereIs) {
  EXPECT_THAT(run(base_config(1), 1, 3, 2, 9), HasSubstr("timeline of steps 2 to 3"));
  const std::map<std::string, int> names = names_of(read(), 0);
  EXPECT_TRUE(names.contains("step 3"));
  std::filesystem::remove(path_);
  EXPECT_THAT(run(base_config(1), 1, 1, 3, 9), HasSubstr("took none of the steps 3 to 9"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TimelineTest, WhatCannotBeIsAnErrorBeforeTraining) {
  run_engines({base_config(1), 1}, [&](Engine& engine, Communicator& comm) {
    const auto create = [&](const TimelineOptions& options) {
      Timeline::create(engine, comm, options, 0);
    };
    EXPECT_ERROR_OF(ConfigError, create({path_, 3, 2}), "steps 3 to 2");
    EXPECT_ERROR_OF(IoError, create({"/proc/none/t.json", 1, 2}), "/proc/none/t.json");
    EXPECT_ERROR_OF(IoError, create({"/", 1, 2}), "is a folder");
  });
}

// What the test saw itself, as "wait", "reduction", "gather", "offload".
struct Seen {
  std::string what;
  double begin = 0;
  double end = 0;
};

class Witness {
 public:
  Witness(Engine& engine, Communicator& comm) {
    const auto work = [this](const WorkSpan& span) {
      const bool is_program = span.stream == kProgramStream;
      const bool waits = span.name == "optimizer" || span.name.starts_with("wait");
      if (is_program && waits) add("wait", span.begin_s, span.end_s);
      if (!is_program && span.stream != "zerorun-comm") add("offload", span.begin_s, span.end_s);
    };
    subscriptions_ = {
        engine.observe(work), engine.device().observe(work),
        comm.observe([this](const CollectiveSpan& span) {
          const std::lock_guard lock(mutex_);
          seconds_[static_cast<size_t>(span.op)] += span.end_s - span.begin_s;
          const bool reduces = span.op == Collective::reduce_scatter;
          const bool gathers = span.op == Collective::all_gather;
          if (!reduces && !gathers) return;
          seen_.push_back({reduces ? "reduction" : "gather", span.begin_s, span.end_s});
        })};
  }

  // Between two ends of spans nothing changes.
  SplitSeconds split(const std::string& what) const {
    std::set<double> ends;
    for (const Seen& one : seen_) ends.insert({one.begin, one.end});
    const auto covers = [&](const std::string& which, double moment) {
      return std::ranges::any_of(seen_, [&](const Seen& one) {
        return one.what == which && one.begin <= moment && moment < one.end;
      });
    };
    SplitSeconds sums;
    for (auto end = ends.begin(); end != ends.end() && std::next(end) != ends.end(); ++end) {
      const double moment = (*end + *std::next(end)) / 2;
      if (!covers(what, moment)) continue;
      (covers("wait", moment) ? sums.exposed : sums.hidden) += *std::next(end) - *end;
    }
    return sums;
  }
  double seconds(Collective op) const { return seconds_[static_cast<size_t>(op)]; }

 private:
  void add(const std::string& what, double begin, double end) {
    const std::lock_guard lock(mutex_);
    seen_.push_back({what, begin, end});
  }

  std::mutex mutex_;
  std::vector<Seen> seen_;
  std::array<double, kCollectives> seconds_{};
  std::vector<Subscription> subscriptions_;
};

void expect_split(const std::optional<SplitSeconds>& found, const SplitSeconds& expected,
                  const std::string& what) {
  ASSERT_TRUE(found) << what;
  // The meter leaves out waits of less than a microsecond.
  EXPECT_NEAR(found->exposed, expected.exposed, 2e-4) << what;
  EXPECT_NEAR(found->exposed + found->hidden, expected.exposed + expected.hidden, 1e-9) << what;
}

void check(Config config) {
  run_ranks(2, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    auto engine = Engine::create(config, *device, comm, toy_specs(), ToyModel::groups());
    toy_initialize(*engine);
    const Witness witness(*engine, comm);
    WorkMeter meter(*engine, comm);
    for (int step = 1; step <= 3; ++step) toy_step(*engine, comm, config, step);
    engine.reset();  // its streams have told all
    const StepWork work = meter.take();
    expect_split(work.reductions, witness.split("reduction"), "reductions");
    expect_split(work.gathers, witness.split("gather"), "gathers");
    expect_split(work.offload, witness.split("offload"), "offload");
    EXPECT_GT(work.reductions->exposed + work.reductions->hidden, 0);
    EXPECT_EQ(work.offload->any(), config.offload.optimizer.device != OffloadDevice::none);
    const auto seconds = meter.collective_seconds();
    for (int i = 0; i < kCollectives; ++i) {
      EXPECT_DOUBLE_EQ(seconds[static_cast<size_t>(i)],
                       witness.seconds(static_cast<Collective>(i)));
    }
    EXPECT_FALSE(meter.take().reductions->any());  // since the last look
  });
}

TEST(WorkMeterTest, WorkIsSplitByWhetherTheProgramWaited) {
  for (Config config : {base_config(2), base_config(3), offloaded(base_config(2)),
                        offloaded(base_config(2), 1.0, OffloadDevice::nvme)}) {
    config.zero.overlap_comm = true;
    check(config);
  }
}

}  // namespace
}  // namespace zerorun::testing::timeline
