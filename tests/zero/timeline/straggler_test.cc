#include "core/wait_clock.h"
#include "tests/zero/toy_run.h"
#include "zero/timeline/straggler_watch.h"

namespace zerorun::testing::straggler {
namespace {

constexpr int64_t kMs = 1'000'000;

// What a rank does in a step, in milliseconds.
struct Work {
  double data = 2.0;
  double compute = 15.0;
  double copy = 1.0;
  double save = 0.0;

  double sum() const { return data + compute + copy + save; }
};
using WorkOf = std::function<Work(int rank, int step)>;

// Ranks that meet at the end of each step. Their time passes only as they work and wait.
class Job {
 public:
  Job(int ranks, WorkOf work, bool on_host = true)
      : work_(std::move(work)), times_(static_cast<size_t>(ranks)), search_(on_host) {
    for (const PartClock::Reading& time : times_) clocks_.emplace_back([&time] { return time; });
  }

  // The first step after which a straggler is known; 0: none.
  int run(int steps) {
    while (step_ < steps) {
      take_step();
      if (found()) return step_;
    }
    return 0;
  }
  void take_step() {
    ++step_;
    double longest = 0.0;
    for (size_t rank = 0; rank < times_.size(); ++rank) {
      longest = std::max(longest, work_(static_cast<int>(rank), step_).sum());
    }
    std::vector<int64_t> words;
    for (size_t rank = 0; rank < times_.size(); ++rank) {
      const Work work = work_(static_cast<int>(rank), step_);
      const auto pass = [&](double ms, int64_t WaitTimes::*waited = nullptr) {
        const auto ns = static_cast<int64_t>(ms * kMs);
        times_[rank].now_ns += ns;
        if (waited != nullptr) times_[rank].waited.*waited += ns;
      };
      PartClock& clock = clocks_[rank];
      clock.enter(StepPart::data);
      pass(work.data);
      const StepPart before = clock.enter(StepPart::save);
      pass(work.save / 2);
      pass(work.save / 2, &WaitTimes::copies_ns);  // of the states that it saves
      clock.enter(before);
      clock.enter(StepPart::compute);
      pass(work.compute);
      pass(work.copy, &WaitTimes::copies_ns);
      pass(longest - work.sum(), &WaitTimes::peers_ns);
      words.push_back(encode_shares(clock.take()));
    }
    search_.add(words, 1e-9 * static_cast<double>(clocks_[0].step_ns()));
  }
  const std::optional<StragglerSearch::Found>& found() const { return search_.found(); }

 private:
  const WorkOf work_;
  int step_ = 0;
  std::vector<PartClock::Reading> times_;
  std::vector<PartClock> clocks_;
  StragglerSearch search_;
};

// Every rank's work alike, but for one whose part takes longer.
WorkOf slower(int slow, double Work::*part, double ms, Work all = {}) {
  return [=](int rank, int) {
    Work own = all;
    if (rank == slow) own.*part += ms;
    return own;
  };
}

void expect_found(Job job, int rank, StepPart cause, double share, int last = 50) {
  const int step = job.run(last);
  ASSERT_GT(step, 0);
  EXPECT_EQ(job.found()->rank, rank);
  EXPECT_EQ(name_of(job.found()->cause), name_of(cause));
  EXPECT_NEAR(job.found()->share, share, 0.01);
}

TEST(Straggler, TenPercentInDataComputeOrCopiesAreFoundWithin50Steps) {
  for (const int ranks : {2, 3, 4, 16}) {
    for (const int slow : {0, ranks - 1}) {
      expect_found(Job(ranks, slower(slow, &Work::data, 2.0)), slow, StepPart::data, 0.1);
      expect_found(Job(ranks, slower(slow, &Work::compute, 2.0)), slow, StepPart::compute, 0.1);
      expect_found(Job(ranks, slower(slow, &Work::copy, 2.0)), slow, StepPart::copy, 0.1);
    }
  }
}

// The host of rank 0 waits for its GPU where the program prints the loss: "computation" of 80 ms
// that the others spend waiting in the norm, for their own GPUs.
WorkOf printing(double Work::*late_part, double ms) {
  return [=](int rank, int) {
    Work own{.compute = rank == 0 ? 90.0 + ms : 10.0};  // of which `ms` for rank 2
    if (rank == 2) own.*late_part += ms;
    return own;
  };
}

TEST(Straggler, OnAGpuDataAndCopiesCanBeLate) {
  expect_found(Job(4, printing(&Work::data, 20), false), 2, StepPart::data, 20.0 / 113.0);
  expect_found(Job(4, printing(&Work::copy, 20), false), 2, StepPart::copy, 20.0 / 113.0);
}

// A save every tenth step is in one step of ten: 4 of them are enough.
TEST(Straggler, SlowSavesAreFoundByTheSavesAlone) {
  const auto work = [](int rank, int step) {
    Work own;
    if (step % 10 == 1 && step > 1) own.save = rank == 1 ? 60.0 : 20.0;
    return own;
  };
  EXPECT_EQ(Job(4, work).run(40), 0);
  expect_found(Job(4, work), 1, StepPart::save, 40.0 / (9 * 18 + 78), 41);
}

TEST(Straggler, MoreThanAMillisecondIsLate) {
  for (const double compute : {0.5, 2.0, 4.0}) {
    const Work all{.data = 0.1, .compute = compute, .copy = 0.0};
    EXPECT_EQ(Job(4, slower(0, &Work::data, 0.9, all)).run(400), 0);
    EXPECT_EQ(Job(4, slower(0, &Work::data, 1.1, all)).run(400), 40);
  }
}

TEST(Straggler, NobodyIsNamed) {
  const auto expect_none = [](const char* why, int ranks, const WorkOf& work, bool on_host = true) {
    EXPECT_EQ(Job(ranks, work, on_host).run(2000), 0) << why;
  };
  expect_none("one rank has no peers", 1, slower(0, &Work::data, 9.0));
  expect_none("all are equally fast", 4, slower(0, &Work::data, 0.0));
  expect_none("4 % are less than the rule's 5 %", 4, slower(1, &Work::data, 0.7));
  expect_none("saves differ by a little", 2, slower(1, &Work::save, 10.0, {.save = 35.0}));
  expect_none("saves differ by sometimes one rank", 2,
              [](int rank, int step) { return Work{.save = rank == step / 3 % 2 ? 60.0 : 20.0}; });
  expect_none("one long pause is not persistent", 4, [](int rank, int step) {
    return Work{.compute = rank == 1 && step % 20 == 0 ? 2000.0 : 15.0};
  });
  EXPECT_GT(Job(4, printing(&Work::data, 0.0)).run(400), 0);  // the same on the host
  for (const int ranks : {2, 4}) {
    expect_none("a GPU's rank prints", ranks, printing(&Work::data, 0.0), false);
    expect_none("a GPU's rank launches", ranks, slower(1, &Work::compute, 10.0, {.compute = 20.0}),
                false);
  }
  const auto hidden = [](int rank, int) {
    return Work{.data = rank == 1 ? 12.0 : 2.0, .compute = rank == 1 ? 10.0 : 20.0};
  };
  expect_none("its GPU works while the host is late", 4, hidden, false);
  StragglerSearch search;
  search.add({}, 1.0);
  EXPECT_FALSE(search.found());
}

// Where cores are shared each step of each rank takes up to three times as long, by chance.
TEST(Straggler, NoiseNamesNobody) {
  for (const int ranks : {2, 4, 8}) {
    std::mt19937 random(7);
    std::exponential_distribution<double> late(1.0 / 15.0);
    int step_drawn = 0;
    std::vector<Work> drawn(static_cast<size_t>(ranks));
    const auto work = [&](int rank, int step) {
      if (step != std::exchange(step_drawn, step)) {
        for (Work& one : drawn) one.compute = 15.0 + late(random);
      }
      return drawn[static_cast<size_t>(rank)];
    };
    EXPECT_EQ(Job(ranks, work).run(20'000), 0) << ranks << " ranks";
  }
}

TEST(Straggler, ARankThatRecoversIsNamedNoMore) {
  const auto work = [](int rank, int step) {
    return Work{.data = rank == 1 && step < 100 ? 12.0 : 2.0};
  };
  Job job(2, work);
  for (int step = 1; step <= 110; ++step) {
    job.take_step();
    if (step < 40 || step == 110) {
      EXPECT_FALSE(job.found()) << step;
    } else if (step < 100) {
      EXPECT_TRUE(job.found()) << step;
    }
  }
}

TEST(Straggler, ItsTextSaysWhoWhereHowMuchAndWhy) {
  EXPECT_THAT((Straggler{3, "b", 0.1234, StepPart::data}.text()),
              StartsWith("rank 3 (host b) is waited for: 12 % of the time, spent between calls"));
}

// A clock of another thread, as after a program's move to one, makes no share negative.
TEST(Straggler, APartIsNeverNegative) {
  PartClock::Reading now{.now_ns = 100, .waited = {50, 20}};
  PartClock clock([&] { return now; });
  now = {.now_ns = 200, .waited = {10, 0}};
  const StepShares shares = clock.take();
  EXPECT_EQ(shares.waited, 0.0);
  EXPECT_EQ(shares[StepPart::compute], 1.0);
}

// What the ranks' engines say after training.
struct Outcome {
  std::optional<Straggler> found;  // by rank 0
  std::array<double, 3> waited{};  // sums of the shares of all steps, by rank
};

// Trains with three ranks. `late`: the last loads its data for longer, by three times what a step
// takes: cores that are shared delay each rank by chance, and more in longer steps.
Outcome train(int stage, const HostOf& host_of, int steps, bool late) {
  Config config = toy_config(stage);
  config.zero.overlap_comm = stage >= 2;
  config.zero.reduce_bucket_size = 1'000'000;
  Outcome outcome;
  run_engines({config, 3, host_of}, [&](Engine& engine, Communicator& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    double step_s = 0.0;
    for (int64_t step = 0; step < steps; ++step) {
      engine.enter(StepPart::data);
      const std::chrono::duration<double> loading(late && rank == 2 ? 0.02 + 3.0 * step_s : 0.005);
      std::this_thread::sleep_for(loading);
      engine.enter(StepPart::compute);
      const double begin = steady_seconds();
      toy_step(engine, comm, config, step);
      step_s = steady_seconds() - begin;
      outcome.waited[rank] += engine.stragglers().own.waited;
    }
    const auto found = engine.stragglers().found;
    if (rank == 0) outcome.found = found;
    EXPECT_TRUE(rank == 0 || !found);
  });
  return outcome;
}

// Sums of many steps: in a single one any rank may be the last where cores are shared.
TEST(Straggler, EnginesNameALateRankThatTheOthersWaitForOnOneHostAndOnSeveral) {
  for (const auto& [stage, host_of] : {std::pair(2, HostOf{}), std::pair(3, hosts_of(2))}) {
    const Outcome outcome = train(stage, host_of, 45, true);
    const double least = std::min(outcome.waited[0], outcome.waited[1]);
    EXPECT_GT(least, outcome.waited[2] + 4.5) << "stage " << stage;  // 10 % of the steps
    ASSERT_TRUE(outcome.found) << "stage " << stage;
    EXPECT_EQ(outcome.found->rank, 2);
    EXPECT_EQ(name_of(outcome.found->cause), "data");
    EXPECT_FALSE(outcome.found->host.empty());
    EXPECT_GT(outcome.found->share, 0.1);
  }
}

TEST(Straggler, EnginesThatAreEquallyFastNameNobody) {
  EXPECT_FALSE(train(1, {}, 60, false).found);
}

// A thread that waits for a stream waits for the ranks that the stream's thread waits for.
TEST(WaitClock, AWaitForAStreamIsAWaitForWhatItWaitsFor) {
  const auto comm = make_worker_stream("comm");
  const auto copies = make_worker_stream("copies");
  serve_offloading(*copies);
  const auto nap = [] { std::this_thread::sleep_for(20ms); };
  const auto waited_in = [](const std::function<void()>& work) {
    const WaitTimes before = WaitClock::of_this_thread().read();
    work();
    const WaitTimes after = WaitClock::of_this_thread().read();
    return WaitTimes{after.peers_ns - before.peers_ns, after.copies_ns - before.copies_ns};
  };
  const auto for_peers = [&] {
    const PeerWait wait;
    nap();
  };
  WaitTimes waited = waited_in([&] {
    comm->submit(for_peers);
    comm->synchronize();
  });
  EXPECT_GE(waited.peers_ns, 10 * kMs);
  EXPECT_EQ(waited.copies_ns, 0);
  waited = waited_in([&] {  // the transfer itself is neither
    comm->submit(nap);
    comm->synchronize();
  });
  EXPECT_EQ(waited.peers_ns, 0);
  EXPECT_EQ(waited.copies_ns, 0);
  waited = waited_in([&] {  // through a collective that waits for what is offloaded
    copies->submit(nap);
    comm->wait(copies->record());
    comm->synchronize();
  });
  EXPECT_EQ(waited.peers_ns, 0);
  EXPECT_GE(waited.copies_ns, 10 * kMs);
  waited = waited_in([&] {  // what the stream waits for while this thread works is not waited for
    comm->submit(for_peers);
    std::this_thread::sleep_for(60ms);
    comm->synchronize();
  });
  EXPECT_LE(waited.peers_ns, 10 * kMs);
}

}  // namespace
}  // namespace zerorun::testing::straggler
