// What ranks learn if one of them dies while they are divided into groups. Ranks are processes.

#include "comm/agreement.h"
#include "comm/hierarchical/topology.h"
#include "comm/rendezvous/tcp_store.h"
#include "device/cpu/cpu_stream.h"
#include "tests/comm/processes.h"

namespace zerorun::testing::split_failures {
namespace {

constexpr int kRanks = 4;

// How far a rank gets in split() before it dies.
enum class End { before_it, after_colors, after_the_store, after_places };
constexpr std::array kEnds = {End::before_it, End::after_colors, End::after_the_store,
                              End::after_places};

// Takes the first steps of split() and ends the process without a word.
void die_in_split(Communicator& world, Shared& shared, const std::vector<int>& group, int color,
                  const std::string& host, End end) {
  const auto stream = make_inline_stream();
  if (end == End::before_it) _exit(0);
  Agreement(world, *stream).gather(std::array<int64_t, 2>{color, 0}, "colors and keys of a split");
  if (end == End::after_colors) _exit(0);
  GroupOptions options{CommunicatorOptions{}};
  options.name = fmt::format("world/split1/{}", color);
  options.world_size = static_cast<int>(group.size());
  options.rank = group[0] == world.rank() ? 0 : 1;
  options.numbers = group;
  options.host = host;
  if (world.transport() == "shm") {
    options.store = make_host_store(world, *stream, options.timeout);
  } else if (world.rank() != 0) {  // rank 0's store went with it
    options.store =
        make_tcp_store({.port = static_cast<uint16_t>(shared.port.load()), .secret = "test"});
  }
  if (end == End::after_the_store) _exit(0);
  if (options.store) Topology::discover(options);
  _exit(0);
}

struct Case {
  int ranks_of_host;
  bool neighbours;  // groups {0, 1} and {2, 3}; else {0, 2} and {1, 3}
  int dies;
  End end;
};

void expect_news(const Case& c) {
  const HostOf host_of = hosts_of(c.ranks_of_host);
  const auto color_of = [&](int rank) { return c.neighbours ? rank / 2 : rank % 2; };
  Processes ranks({.ranks = kRanks, .host_of = host_of, .timeout = std::chrono::minutes(1)},
                  [&](Communicator& world, Shared& shared) -> std::string {
                    const int color = color_of(world.rank());
                    ++shared.progress;
                    if (world.rank() == c.dies) {
                      await(shared.progress, kRanks);  // all have the communicator that is split
                      std::vector<int> group;
                      for (int rank = 0; rank < kRanks; ++rank) {
                        if (color_of(rank) == color) group.push_back(rank);
                      }
                      die_in_split(world, shared, group, color, host_of(c.dies), c.end);
                    }
                    world.split(color, 0, fmt::format("half {}", color));
                    return "no error";
                  });
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == c.dies) continue;
    EXPECT_THAT(ranks.result(rank),
                AllOf(HasSubstr(fmt::format("rank {} (pid", c.dies)),
                      AnyOf(HasSubstr("died"), HasSubstr("store")), HasSubstr("split")))
        << "rank " << rank << ", hosts of " << c.ranks_of_host << ", "
        << (c.neighbours ? "neighbours" : "every other rank") << ", rank " << c.dies
        << " dies, end " << static_cast<int>(c.end);
  }
}

TEST(SplitFailureTest, ADeadRankOfOneHostIsNoticedByAllGroups) {
  for (const End end : kEnds) {
    for (const int dies : {0, 2, 3}) expect_news({kRanks, true, dies, end});
  }
}

TEST(SplitFailureTest, ADeadRankOfSeveralHostsIsNoticedByAllGroups) {
  for (const End end : kEnds) {
    for (const int dies : {2, 3}) {
      for (const bool neighbours : {true, false}) expect_news({2, neighbours, dies, end});
    }
  }
}

}  // namespace
}  // namespace zerorun::testing::split_failures
