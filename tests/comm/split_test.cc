// Any division of ranks into groups, on any layout: who is where, what they add, and what is left.
#include "device/cpu/cpu_stream.h"
#include "tests/harness.h"

namespace zerorun::testing::splits {
namespace {

constexpr int kRanks = 6;
const std::vector<HostOf> kLayouts = {hosts_of(6), hosts_of(3), hosts_of(4), hosts_of(1)};

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
  for (const HostOf& host_of : kLayouts) {
    run_ranks({.ranks = kRanks, .host_of = host_of, .timeout = std::chrono::seconds(60)},
              [](Communicator& world) {
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
  for (const HostOf& host_of : kLayouts) {
    run_ranks({.ranks = 4, .host_of = host_of, .timeout = std::chrono::seconds(60)},
              [](Communicator& world) {
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
  for (const HostOf& host_of : kLayouts) {
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
      EXPECT_THAT(error, AllOf(HasSubstr("h1: step"), HasSubstr("h1: word"), HasSubstr("rank 2"),
                               HasSubstr("rank 3")));
    });
  }
}

}  // namespace
}  // namespace zerorun::testing::splits
