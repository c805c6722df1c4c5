// Groups of ranks: who is in them, what is counted, and who learns of an error in one of them.
#include "core/wait_clock.h"
#include "tests/comm/processes.h"

namespace zerorun::testing::groups {
namespace {

// Four ranks as two rows of two: {0, 1} and {2, 3}, and the columns {0, 2} and {1, 3}.
struct Grid {
  explicit Grid(Communicator& world)
      : row(world.split(world.rank() / 2, 0, fmt::format("row {}", world.rank() / 2))),
        column(world.split(world.rank() % 2, 0, fmt::format("column {}", world.rank() % 2))) {}

  std::shared_ptr<Communicator> row, column;
};

// The layouts of four ranks on hosts: all on one, each row on its own, all apart.
const std::vector<HostOf> kLayouts = {hosts_of(4), hosts_of(2), hosts_of(1)};

TEST(GroupTest, CallsCountAndAreObservedWhereTheGroupComesFrom) {
  run_ranks(4, [](Communicator& world) {
    const Grid grid(world);
    std::mutex mutex;
    std::vector<std::string> labels;
    Subscription observed = world.observe([&](const CollectiveSpan& span) {
      const std::lock_guard lock(mutex);
      labels.push_back(span.label);
    });
    const int64_t before = world.stats()[Collective::barrier].calls;
    barrier(*grid.row, "step 7");
    barrier(*grid.column, "step 7");
    barrier(world, "step 7");
    observed.reset();
    EXPECT_EQ(grid.row->stats()[Collective::barrier].calls, 1);
    EXPECT_EQ(world.stats()[Collective::barrier].calls - before, 3);
    EXPECT_THAT(labels, ElementsAre(fmt::format("row {}: step 7", world.rank() / 2),
                                    fmt::format("column {}: step 7", world.rank() % 2), "step 7"));
  });
}

TEST(GroupTest, ARankThatLeavesEndsTheWaitsOfEveryGroupByName) {
  for (const HostOf& host_of : kLayouts) {
    std::latch begun(1);
    std::latch seen(2);
    const WaitClock* of_rank_0 = nullptr;
    int64_t before = 0;
    run_ranks({.ranks = 4, .host_of = host_of}, [&](Communicator& world) {
      const Grid grid(world);
      barrier(world, "step 7");
      if (world.rank() == 3) return;
      // Rank 0 waits for rank 2, which waits for rank 3. The others begin when it does, since an
      // error that is there already says nothing of rank 0's wait.
      if (world.rank() == 0) {
        of_rank_0 = &WaitClock::of_this_thread();
        before = of_rank_0->read().peers_ns;
        begun.count_down();
      } else {
        begun.wait();
        while (of_rank_0->read().peers_ns == before) std::this_thread::yield();
        seen.count_down();
      }
      Communicator& waits = world.rank() == 2 ? *grid.row : *grid.column;
      const auto of_rank_3 = HasAll(
          "rank 3", "left", AnyOf(HasSubstr("'row 1: step 7'"), HasSubstr("'column 1: step 7'")));
      // Who waits for another group's wait names both.
      const bool waits_for_rank_3 = world.rank() != 0;
      EXPECT_THAT(
          error_of_barrier(waits, "step 7"),
          AllOf(of_rank_3, waits_for_rank_3 ? HasSubstr("step 7'")
                                            : HasSubstr("; this rank was in barrier 'column 0: ")));
      seen.wait();  // rank 0's clock ends with its thread
      EXPECT_THAT(error_of_barrier(*grid.row, "step 7"), of_rank_3);
      EXPECT_THAT(error_of_barrier(world, "step 7"), of_rank_3);
    });
  }
}

// Rank 0 waits in one group for a rank that computes, while the error is in another group.
TEST(GroupTest, AnAbortEndsTheWaitsInOtherGroups) {
  for (const HostOf& host_of : kLayouts) {
    std::latch joined(4);
    std::latch told(1);
    run_ranks({.ranks = 4, .host_of = host_of}, [&](Communicator& world) {
      const Grid grid(world);
      const auto alone = grid.row->split(grid.row->rank(), 0, "alone");
      EXPECT_EQ(alone->transport(), "self");
      joined.arrive_and_wait();
      if (world.rank() == 1) alone->abort("out of data");
      if (world.rank() != 0) told.wait();
      const std::string error = error_of_barrier(*grid.column, "step 7");
      if (world.rank() == 0) told.count_down();
      EXPECT_THAT(error, HasAll("rank 1", "out of data"));
    });
  }
}

TEST(GroupTest, ADeadlineNamesTheGroupAndTheRanksOfTheJob) {
  std::latch told(1);
  run_ranks({.ranks = 4, .timeout = 2s}, [&](Communicator& world) {
    const Grid grid(world);
    barrier(*grid.row, "step 6");
    const auto of_row_1 =
        HasAll("rank 2 waited", "'row 1: step 7'", "for rank 3 (pid", "'row 1: step 6'");
    if (world.rank() == 2) {
      EXPECT_THAT(error_of_barrier(*grid.row, "step 7"), of_row_1);
      told.count_down();
    } else {
      told.wait();
      EXPECT_THAT(error_of_barrier(world, "step 7"), of_row_1);
    }
  });
}

// "row 0" and "column 1" are the groups of rank 1.
::testing::Matcher<std::string> names_a_group_of(int rank) {
  return AnyOf(HasSubstr(fmt::format("'row {}: step 7'", rank / 2)),
               HasSubstr(fmt::format("'column {}: step 7'", rank % 2)));
}

// The ranks that waited for the killed one tell the others for what. Without a store some cannot be
// told, and name what they waited for themselves.
void expect_told_of(int killed, bool has_store, Processes& ranks) {
  for (const int survivor : {0, 1, 2, 3}) {
    if (survivor == killed) continue;
    EXPECT_THAT(
        ranks.result(survivor),
        HasAll(fmt::format("rank {}", killed), "died",
               AnyOf(names_a_group_of(killed), names_a_group_of(has_store ? killed : survivor))))
        << "rank " << survivor << " when rank " << killed << " is killed";
  }
}

TEST(GroupTest, AKilledProcessEndsTheWaitsOfEveryGroupByName) {
  for (const auto& [host_of, killed] : each(kLayouts, std::array{3, 0})) {
    Processes ranks({.ranks = 4, .host_of = host_of, .timeout = 60s},
                    [](Communicator& world, Shared& shared) -> std::string {
                      const Grid grid(world);
                      while (true) {
                        barrier(*grid.row, "step 7");
                        barrier(*grid.column, "step 7");
                        ++shared.progress;
                      }
                    });
    await(ranks.shared().progress, 40);
    ranks.kill_rank(killed);
    // Rank 0 serves the store of ranks on several hosts.
    expect_told_of(killed, /*has_store=*/killed != 0 || host_of(0) == host_of(3), ranks);
  }
}

// Any division of ranks into groups, on any layout: who is where, what they add, and what is left.
constexpr int kRanks = 6;
const std::vector<HostOf> kLayoutsOfSix = {hosts_of(6), hosts_of(3), hosts_of(4), hosts_of(1)};

// The same numbers on every rank.
struct Draw {
  int color = 0;
  int key = 0;
};
std::vector<Draw> draws(std::mt19937& random, int ranks) {
  const std::vector<int> colors = {-1, 0, 7, 1'000'000'007};
  const std::vector<int> keys = {std::numeric_limits<int>::min(), -3, 0, 0, 5,
                                 std::numeric_limits<int>::max()};
  std::vector<Draw> found;
  for (int rank = 0; rank < ranks; ++rank) {
    found.push_back({colors[random() % colors.size()], keys[random() % keys.size()]});
  }
  return found;
}

// The numbers within `parent` of those that share this rank's color, as split() promises them.
std::vector<int64_t> expected_members(const std::vector<Draw>& all, int color) {
  std::vector<int64_t> members;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].color == color) members.push_back(static_cast<int64_t>(rank));
  }
  std::stable_sort(members.begin(), members.end(), [&](int64_t a, int64_t b) {
    return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key;
  });
  return members;
}

// Splits `parent`, checks the group, and splits that in turn.
void split_down(Communicator& parent, unsigned seed, int depth) {
  std::mt19937 random(seed);
  const std::vector<Draw> all = draws(random, parent.world_size());
  const Draw own = all[static_cast<size_t>(parent.rank())];
  const auto group = parent.split(own.color, own.key, "group");
  if (own.color < 0) {
    EXPECT_EQ(group, nullptr);
  } else {
    const std::vector<int64_t> members = expected_members(all, own.color);
    EXPECT_EQ(gathered(*group, parent.rank()), members);
    EXPECT_EQ(members[static_cast<size_t>(group->rank())], parent.rank());
    EXPECT_EQ(sum_of(*group, parent.rank()),
              std::accumulate(members.begin(), members.end(), int64_t{0}));
    if (depth > 1) split_down(*group, static_cast<unsigned>(random()), depth - 1);
  }
  barrier(parent, "the parent works on");
}

TEST(SplitTest, GroupsOfGroupsAreThoseThatColorsAndKeysSay) {
  for (const HostOf& host_of : kLayoutsOfSix) {
    run_ranks({.ranks = kRanks, .host_of = host_of, .timeout = 60s}, [](Communicator& world) {
      for (unsigned seed = 1; seed <= 6; ++seed) split_down(world, seed, 3);
    });
  }
}

struct Held {
  int64_t descriptors = entries("/proc/self/fd");
  int64_t threads = entries("/proc/self/task");
  int64_t memory = mapped_segments();
};

TEST(SplitTest, GroupsThatEndLeaveNothing) {
  for (const HostOf& host_of : kLayoutsOfSix) {
    run_ranks({.ranks = 4, .host_of = host_of, .timeout = 60s}, [](Communicator& world) {
      Held before;
      for (int round = 0; round < 12; ++round) {
        barrier(world, "");
        if (round == 2) before = Held();
        barrier(world, "");
        const auto half = world.split(world.rank() % 2, 0, "half");
        gathered(*half, 0);
        half->split(0, -half->rank(), "half of it")->barrier(*make_inline_stream(), "");
      }
      barrier(world, "");
      const Held after;
      EXPECT_LE(after.descriptors, before.descriptors + 8);
      EXPECT_LE(after.threads, before.threads + 4);
      EXPECT_LE(after.memory, before.memory);
      barrier(world, "");
    });
  }
}

TEST(SplitTest, RanksThatDivergeInAGroupGetItsName) {
  for (const HostOf& host_of : kLayoutsOfSix) {
    run_ranks({.ranks = 4, .host_of = host_of}, [](Communicator& world) {
      const auto half = world.split(world.rank() / 2, 0, fmt::format("h{}", world.rank() / 2));
      if (world.rank() < 2) {
        // These two are told of it in the next call.
        error_of<CommError>([&] {
          while (true) barrier(*half, "step");
        });
        return;
      }
      const std::string error = error_of<CommError>([&] {
        if (world.rank() == 2) barrier(*half, "step");
        int64_t word = 0;
        half->broadcast(view_of(std::span(&word, 1)), 0, *make_inline_stream(), "word")
            .synchronize();
      });
      EXPECT_THAT(error, HasAll("h1: step", "h1: word", "rank 2", "rank 3"));
    });
  }
}

}  // namespace
}  // namespace zerorun::testing::groups
