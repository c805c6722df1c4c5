#include "core/observers.h"
#include "tests/common.h"
#include "tests/zero/offload_config.h"
#include "tests/zero/toy_run.h"
#include "zero/timeline/span_log.h"

namespace zerorun::testing::work_meter {
namespace {

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
  for (const int stage : {2, 3}) {
    Config config = base_config(stage);
    config.zero.overlap_comm = true;
    check(config);
  }
}

TEST(WorkMeterTest, OffloadingIsOneKindOfWork) {
  check(offloaded(base_config(2)));
  check(offloaded(base_config(2), 1.0, OffloadDevice::nvme));
}

TEST(TimeIntervalsTest, OverlapsCountOnceAndCommonTimeIsFound) {
  const std::vector<TimeInterval> joined = joined_intervals({{4, 6}, {0, 2}, {1, 3}, {6, 7}});
  EXPECT_EQ(joined.size(), 2U);
  EXPECT_DOUBLE_EQ(total_seconds(joined), 6);
  EXPECT_DOUBLE_EQ(total_seconds(shared_intervals(joined, {{2, 5}, {6, 9}})), 1 + 1 + 1);
}

}  // namespace
}  // namespace zerorun::testing::work_meter
