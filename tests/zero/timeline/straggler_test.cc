#include "core/wait_clock.h"
#include "device/cpu/cpu_stream.h"
#include "tests/zero/toy_run.h"
#include "zero/timeline/straggler_watch.h"

namespace zerorun::testing::straggler {
namespace {

constexpr int64_t kMs = 1'000'000;

// The time of one rank, which passes only when the test says so.
struct FakeTime {
  PartClock::Reading now;

  void pass(int64_t ns) { now.now_ns += ns; }
  void wait(int64_t ns) {
    now.now_ns += ns;
    now.waited.peers_ns += ns;
  }
  void copy(int64_t ns) {
    now.now_ns += ns;
    now.waited.copies_ns += ns;
  }
};

// What a rank does in a step, in milliseconds.
struct Work {
  double data = 2.0;
  double compute = 15.0;
  double copy = 1.0;
  double save = 0.0;

  double sum() const { return data + compute + copy + save; }
};
using WorkOf = std::function<Work(int rank, int step)>;

// Ranks that meet at the end of each step.
class Job {
 public:
  Job(int ranks, WorkOf work, bool on_host = true)
      : work_(std::move(work)), times_(static_cast<size_t>(ranks)), search_(on_host) {
    for (FakeTime& time : times_) clocks_.emplace_back([&time] { return time.now; });
  }

  // The first step after which a straggler is known; 0: none.
  int run(int steps) {
    for (int step = 1; step <= steps; ++step) {
      take(step);
      if (search_.found()) return step;
    }
    return 0;
  }
  void run_on(int first, int last) {
    for (int step = first; step <= last; ++step) take(step);
  }
  const std::optional<StragglerSearch::Found>& found() const { return search_.found(); }

 private:
  void take(int step) {
    double longest = 0.0;
    for (size_t rank = 0; rank < times_.size(); ++rank) {
      longest = std::max(longest, work_(static_cast<int>(rank), step).sum());
    }
    std::vector<int64_t> words;
    for (size_t rank = 0; rank < times_.size(); ++rank) {
      const Work work = work_(static_cast<int>(rank), step);
      const auto ns = [](double ms) { return static_cast<int64_t>(ms * kMs); };
      FakeTime& time = times_[rank];
      PartClock& clock = clocks_[rank];
      clock.enter(StepPart::data);
      time.pass(ns(work.data));
      const StepPart before = clock.enter(StepPart::save);
      time.pass(ns(work.save) / 2);
      time.copy(ns(work.save) / 2);  // of the states that it saves
      clock.enter(before);
      clock.enter(StepPart::compute);
      time.pass(ns(work.compute));
      time.copy(ns(work.copy));
      time.wait(ns(longest - work.sum()));
      words.push_back(encode_shares(clock.take()));
    }
    search_.add(words, 1e-9 * static_cast<double>(clocks_[0].step_ns()));
  }

  const WorkOf work_;
  std::vector<FakeTime> times_;
  std::vector<PartClock> clocks_;
  StragglerSearch search_;
};

void expect_found(Job job, int rank, StepPart cause, double share) {
  const int step = job.run(50);
  ASSERT_GT(step, 0);
  EXPECT_EQ(job.found()->rank, rank);
  EXPECT_EQ(name_of(job.found()->cause), name_of(cause));
  EXPECT_NEAR(job.found()->share, share, 0.01);
}

TEST(Straggler, TenPercentInDataComputeOrCopiesAreFoundWithin50Steps) {
  const auto more = [](double Work::*part) -> WorkOf {
    return [part](int rank, int) {
      Work own;
      if (rank == 2) own.*part += 2.0;
      return own;
    };
  };
  for (const int ranks : {3, 4, 16}) {
    expect_found(Job(ranks, more(&Work::data)), 2, StepPart::data, 0.1);
    expect_found(Job(ranks, more(&Work::compute)), 2, StepPart::compute, 0.1);
    expect_found(Job(ranks, more(&Work::copy)), 2, StepPart::copy, 0.1);
  }
}

TEST(Straggler, OfTwoRanksEitherIsFound) {
  for (const int slow : {0, 1}) {
    const auto work = [slow](int rank, int) { return Work{.data = rank == slow ? 5.0 : 3.0}; };
    expect_found(Job(2, work), slow, StepPart::data, 2.0 / 21.0);
  }
}

// The host of rank 0 waits for its GPU where the program prints the loss: "computation" of 80 ms
// that the others spend waiting in the norm, for their own GPUs.
TEST(Straggler, OnAGpuOnlyDataCopiesAndSavesCanBeLate) {
  const auto prints = [](int rank, int) { return Work{.compute = rank == 0 ? 90.0 : 10.0}; };
  const auto launches = [](int rank, int) { return Work{.compute = rank == 1 ? 30.0 : 20.0}; };
  for (const int ranks : {2, 4}) {
    EXPECT_EQ(Job(ranks, prints, false).run(400), 0);
    EXPECT_EQ(Job(ranks, launches, false).run(400), 0);
    EXPECT_GT(Job(ranks, prints, true).run(400), 0);
  }
  for (double Work::*part : {&Work::data, &Work::copy}) {
    const auto late = [part](int rank, int) {
      Work own{.compute = rank == 0 ? 110.0 : 10.0};  // of which 20 ms for rank 2
      if (rank == 2) own.*part += 20.0;
      return own;
    };
    const StepPart cause = part == &Work::data ? StepPart::data : StepPart::copy;
    expect_found(Job(4, late, false), 2, cause, 20.0 / 113.0);
  }
  // What the host does longer while its GPU works delays nobody.
  const auto hidden = [](int rank, int) {
    return Work{.data = rank == 1 ? 12.0 : 2.0, .compute = rank == 1 ? 10.0 : 20.0};
  };
  EXPECT_EQ(Job(4, hidden, false).run(400), 0);
}

TEST(Straggler, LessThanAMillisecondNamesNobody) {
  for (const double compute : {0.5, 2.0, 4.0}) {
    const auto by = [compute](double more) -> WorkOf {
      return [=](int rank, int) {
        return Work{.data = rank == 0 ? 0.1 + more : 0.1, .compute = compute, .copy = 0.0};
      };
    };
    EXPECT_EQ(Job(4, by(0.9)).run(400), 0);
    EXPECT_EQ(Job(4, by(1.1)).run(400), 40);
  }
}

// A save every tenth step is in one step of ten: 4 of them are enough.
TEST(Straggler, SlowSavesAreFoundByTheSavesAlone) {
  const auto work = [](int rank, int step) {
    Work own;
    if (step % 10 == 1 && step > 1) own.save = rank == 1 ? 60.0 : 20.0;
    return own;
  };
  Job job(4, work);
  EXPECT_EQ(job.run(50), 41);
  EXPECT_EQ(job.found()->rank, 1);
  EXPECT_EQ(job.found()->cause, StepPart::save);
  EXPECT_NEAR(job.found()->share, 40.0 / (9 * 18 + 78), 0.01);
}

TEST(Straggler, SavesThatDifferByALittleOrBySometimesOneRankNameNobody) {
  EXPECT_EQ(Job(2, [](int rank, int) { return Work{.save = rank == 1 ? 45.0 : 35.0}; }).run(200),
            0);
  const auto in_turn = [](int rank, int step) {
    return Work{.save = rank == step / 3 % 2 ? 60.0 : 20.0};
  };
  EXPECT_EQ(Job(2, in_turn).run(200), 0);
}

TEST(Straggler, RanksThatAreEquallyFastNameNobody) {
  EXPECT_EQ(Job(4, [](int, int) { return Work{}; }).run(2000), 0);
  // 4 % are less than the rule's 5 %.
  EXPECT_EQ(Job(4, [](int rank, int) { return Work{.data = rank == 1 ? 2.7 : 2.0}; }).run(2000), 0);
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

TEST(Straggler, OneLongPauseIsNotPersistent) {
  const auto work = [](int rank, int step) {
    return Work{.compute = rank == 1 && step % 20 == 0 ? 2000.0 : 15.0};
  };
  EXPECT_EQ(Job(4, work).run(400), 0);
}

TEST(Straggler, ARankThatRecoversIsNamedNoMore) {
  const auto work = [](int rank, int step) {
    return Work{.data = rank == 1 && step < 100 ? 12.0 : 2.0};
  };
  Job job(2, work);
  EXPECT_EQ(job.run(99), 40);
  job.run_on(41, 99);
  EXPECT_TRUE(job.found());
  job.run_on(100, 110);
  EXPECT_FALSE(job.found());
}

TEST(Straggler, OneRankAndNoRankHaveNone) {
  EXPECT_EQ(Job(1, [](int, int) { return Work{}; }).run(100), 0);
  StragglerSearch search;
  search.add({}, 1.0);
  EXPECT_FALSE(search.found());
}

TEST(Straggler, AWordHoldsTheSharesTo4096ths) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> share(0.0, 1.0);
  for (int i = 0; i < 1000; ++i) {
    StepShares shares{share(random), {share(random), share(random), share(random), share(random)}};
    const int64_t word = encode_shares(shares);
    EXPECT_GE(word, 0);
    EXPECT_NEAR(decode_shares(word).waited, shares.waited, 0.5 / 4095 + 1e-12);
    for (size_t part = 0; part < shares.parts.size(); ++part) {
      EXPECT_NEAR(decode_shares(word).parts[part], shares.parts[part], 0.5 / 4095 + 1e-12);
    }
  }
  EXPECT_EQ(decode_shares(encode_shares({2.0, {-1.0, 0, 0, 0}})).waited, 1.0);
}

TEST(Straggler, ItsTextSaysWhoWhereHowMuchAndWhy) {
  EXPECT_EQ(
      (Straggler{3, "b", 0.1234, StepPart::data}.text()),
      "rank 3 (host b) is waited for: 12 % of the time, spent between calls of the engine (data "
      "loading, evaluation, logging)");
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

struct Layout {
  int stage = 0;
  bool overlap = false;
  HostOf host_of{};
};

// What the ranks' engines say after training.
struct Outcome {
  std::optional<Straggler> found;  // by rank 0
  std::array<double, 3> waited{};  // sums of the shares of all steps, by rank
  std::array<double, 3> data{};
};

// Trains with three ranks. `late`: the last loads its data for longer, by three times what a step
// takes: cores that are shared delay each rank by chance, and more in longer steps.
Outcome train_with_late_rank(const Layout& layout, int steps, bool late) {
  Config config = toy_config(layout.stage);
  config.zero.overlap_comm = layout.overlap;
  config.zero.reduce_bucket_size = 1'000'000;
  Outcome outcome;
  run_engines({config, 3, layout.host_of}, [&](Engine& engine, Communicator& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    const bool is_late = late && rank == 2;
    double step_s = 0.0;
    for (int64_t step = 0; step < steps; ++step) {
      engine.enter(StepPart::data);
      const std::chrono::duration<double> loading(is_late ? 0.02 + 3.0 * step_s : 0.005);
      std::this_thread::sleep_for(loading);
      engine.enter(StepPart::compute);
      const double begin = steady_seconds();
      toy_step(engine, comm, config, step);
      step_s = steady_seconds() - begin;
      const StepShares own = engine.stragglers().own;
      outcome.waited[rank] += own.waited;
      outcome.data[rank] += own[StepPart::data];
    }
    const auto found = engine.stragglers().found;
    if (rank == 0) {
      outcome.found = found;
    } else {
      EXPECT_FALSE(found);
    }
  });
  return outcome;
}

// Sums of many steps: in a single one any rank may be the last where cores are shared.
TEST(Straggler, EnginesWaitForALateRankAtAnyStageAndOnSeveralHosts) {
  const std::vector<Layout> layouts = {{0, false},
                                       {1, true},
                                       {2, false},
                                       {3, true},
                                       {2, true, hosts_of(1)},
                                       {3, false, hosts_of(2)}};
  for (const Layout& layout : layouts) {
    const Outcome outcome = train_with_late_rank(layout, 10, true);
    const double least = std::min(outcome.waited[0], outcome.waited[1]);
    EXPECT_GT(least, outcome.waited[2] + 1.0) << "stage " << layout.stage;  // 10 % of the steps
    EXPECT_GT(outcome.data[2], outcome.data[0]);
    EXPECT_GT(outcome.data[2], outcome.data[1]);
  }
}

TEST(Straggler, EnginesNameALateRank) {
  const Outcome outcome = train_with_late_rank({2, true}, 45, true);
  ASSERT_TRUE(outcome.found);
  EXPECT_EQ(outcome.found->rank, 2);
  EXPECT_EQ(name_of(outcome.found->cause), "data");
  EXPECT_FALSE(outcome.found->host.empty());
  EXPECT_GT(outcome.found->share, 0.1);
}

TEST(Straggler, EnginesThatAreEquallyFastNameNobody) {
  EXPECT_FALSE(train_with_late_rank({2, true}, 60, false).found);
}

// A thread that waits for a stream waits for the ranks that the stream's thread waits for.
TEST(WaitClock, AWaitForAStreamIsAWaitForWhatItWaitsFor) {
  const auto comm = make_worker_stream("comm");
  const auto copies = make_worker_stream("copies");
  serve_offloading(*copies);
  const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
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
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    comm->synchronize();
  });
  EXPECT_LE(waited.peers_ns, 10 * kMs);
}

}  // namespace
}  // namespace zerorun::testing::straggler
