// Any division of ranks into groups, on any layout: who is where, what they add, and what is left.
#include "device/cpu/cpu_stream.h"
#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/harness.h"

namespace zerorun::splits {
namespace {

using testing::entries;
using testing::error_of;
using testing::run_ranks;

constexpr int kRanks = 6;
const std::vector<testing::HostOf> kLayouts = {testing::hosts_of(6), testing::hosts_of(3),
                                               testing::hosts_of(4), testing::hosts_of(1)};

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

std::vector<int64_t> gathered(Communicator& group, int64_t own) {
  std::vector<int64_t> all(static_cast<size_t>(group.world_size()));
  group
      .all_gather(view_of(std::span(&own, 1)), view_of(std::span(all)), Sync::collective,
                  *make_inline_stream(), "members")
      .synchronize();
  return all;
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
    int64_t sum = parent.rank();
    const TensorView view = view_of(std::span(&sum, 1));
    group->all_reduce(view, view, ReduceOp::sum, Output::overwrite, *make_inline_stream(), "sum")
        .synchronize();
    EXPECT_EQ(sum, std::accumulate(members.begin(), members.end(), int64_t{0}));
    if (depth > 1) split_down(*group, static_cast<unsigned>(random()), depth - 1);
  }
  parent.barrier(*make_inline_stream(), "the parent works on").synchronize();
}

TEST(SplitTest, GroupsOfGroupsAreThoseThatColorsAndKeysSay) {
  for (const testing::HostOf& host_of : kLayouts) {
    run_ranks(
        kRanks,
        [](Communicator& world) {
          for (unsigned seed = 1; seed <= 6; ++seed) split_down(world, seed, 3);
        },
        std::chrono::seconds(60), host_of);
  }
}

struct Held {
  int64_t descriptors = entries("/proc/self/fd");
  int64_t threads = entries("/proc/self/task");
  int64_t memory = testing::mapped_segments();
};

TEST(SplitTest, GroupsThatEndLeaveNothing) {
  for (const testing::HostOf& host_of : kLayouts) {
    run_ranks(
        4,
        [](Communicator& world) {
          const auto barrier = [&] { world.barrier(*make_inline_stream(), "").synchronize(); };
          Held before;
          for (int round = 0; round < 12; ++round) {
            barrier();
            if (round == 2) before = Held();
            barrier();
            const auto half = world.split(world.rank() % 2, 0, "half");
            gathered(*half, 0);
            half->split(0, -half->rank(), "half of it")->barrier(*make_inline_stream(), "");
          }
          barrier();
          const Held after;
          EXPECT_LE(after.descriptors, before.descriptors + 8);
          EXPECT_LE(after.threads, before.threads + 4);
          EXPECT_LE(after.memory, before.memory);
          barrier();
        },
        std::chrono::seconds(60), host_of);
  }
}

TEST(SplitTest, RanksThatDivergeInAGroupGetItsName) {
  for (const testing::HostOf& host_of : kLayouts) {
    run_ranks(
        4,
        [](Communicator& world) {
          const auto half = world.split(world.rank() / 2, 0, fmt::format("h{}", world.rank() / 2));
          if (world.rank() < 2) {
            // These two are told of it in the next call.
            error_of<CommError>([&] {
              while (true) half->barrier(*make_inline_stream(), "step").synchronize();
            });
            return;
          }
          int64_t word = 0;
          const TensorView view = view_of(std::span(&word, 1));
          const std::string error = error_of<CommError>([&] {
            if (world.rank() == 2) {
              half->barrier(*make_inline_stream(), "step").synchronize();
            } else {
              half->broadcast(view, 0, *make_inline_stream(), "word").synchronize();
            }
          });
          EXPECT_THAT(error, AllOf(HasSubstr("h1: step"), HasSubstr("h1: word"),
                                   HasSubstr("rank 2"), HasSubstr("rank 3")));
        },
        std::chrono::seconds(30), host_of);
  }
}

}  // namespace
}  // namespace zerorun::splits
