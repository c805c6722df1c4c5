// Shared memory between real processes, and what survivors learn when one of them goes.
#include "comm/agreement.h"
#include "comm/hierarchical/topology.h"
#include "comm/rendezvous/tcp_store.h"
#include "tests/comm/processes.h"
#include "tests/comm/reference.h"

namespace zerorun::testing {
namespace {

TEST(ProcessTest, RanksReduceAndGatherInEachOthersMemory) {
  constexpr int kRanks = 3;
  Processes ranks(kRanks, [](Communicator& communicator, Shared&) -> std::string {
    const auto stream = make_worker_stream("comm");
    const int64_t part = 100003;
    const Buffer memory = *communicator.allocate(part * kRanks * 2, Sharing::per_rank);
    const Buffer host = *communicator.allocate(part * kRanks * 2, Sharing::per_host);
    const TensorView whole = view_of(memory, DType::bf16, part * kRanks);
    std::vector<Bytes> inputs;
    for (unsigned rank = 0; rank < kRanks; ++rank) {
      inputs.push_back(random_values(DType::bf16, part * kRanks, rank));
    }
    Bytes sum = inputs[0];
    reference_reduce(inputs, DType::bf16, ReduceOp::sum, Output::overwrite, DType::bf16, sum);
    const Bytes& mine = inputs[static_cast<size_t>(communicator.rank())];
    std::copy(mine.begin(), mine.end(), whole.data);
    const TensorView own = whole.slice(communicator.rank() * part, part);
    communicator.reduce_scatter(whole, own, Output::overwrite, *stream, "gradients");
    communicator.all_gather(own, whole, Sync::collective, *stream, "parameters");
    communicator.all_gather(own, view_of(host, DType::bf16, part * kRanks), Sync::collective,
                            *stream, "one copy");
    stream->synchronize();
    for (const Buffer* got : {&memory, &host}) {
      if (std::memcmp(sum.data(), got->data(), sum.size()) != 0) return "differs";
    }
    return "equal";
  });
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(ranks.result(rank), "equal");
}

TEST(ProcessTest, SurvivorsOfAKillNameTheDeadRankAndTheOperation) {
  Processes ranks(3, [](Communicator& communicator, Shared& shared) -> std::string {
    const auto stream = make_inline_stream();
    Bytes values(1 << 20);
    const TensorView inout = view(values, DType::fp32);
    while (true) {  // until one is killed, in the middle of it
      communicator.all_reduce(inout, inout, ReduceOp::sum, Output::overwrite, *stream, "bucket 3");
      ++shared.progress;
    }
  });
  await(ranks.shared().progress, 20);
  ranks.kill_rank(1);
  for (const int survivor : {0, 2}) {
    EXPECT_THAT(ranks.result(survivor), HasAll("rank 1 (pid", "died while", "'bucket 3'"));
  }
  EXPECT_EQ(ranks.result(1), "");
}

TEST(ProcessTest, ADeathIsNoticedWhileMemoryIsAllocated) {
  Processes ranks(2, [](Communicator& communicator, Shared&) -> std::string {
    if (communicator.rank() == 1) _exit(0);
    return error_of([&] { communicator.allocate(1 << 20, Sharing::per_rank); });
  });
  EXPECT_THAT(ranks.result(0), HasAll("rank 1 (pid", "allocate"));
}

TEST(ProcessTest, AForkedChildDoesNotLeaveInItsParentsName) {
  Processes ranks(2, [](Communicator& communicator, Shared&) -> std::string {
    if (communicator.rank() == 1) {
      const pid_t child = fork();
      if (child == 0) {
        communicator.~Communicator();
        _exit(0);
      }
      waitpid(child, nullptr, 0);
    }
    barrier(communicator, "after the child has gone");
    return "together";
  });
  EXPECT_EQ(ranks.result(0), "together");
  EXPECT_EQ(ranks.result(1), "together");
}

// What ranks learn if one of them dies while they are divided into groups. Ranks are processes.
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
    EXPECT_THAT(ranks.result(rank), HasAll(fmt::format("rank {} (pid", c.dies),
                                           AnyOf(HasSubstr("died"), HasSubstr("store")), "split"))
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
  for (const auto& [end, dies] : each(kEnds, std::array{2, 3})) {
    for (const bool neighbours : {true, false}) expect_news({2, neighbours, dies, end});
  }
}

}  // namespace
}  // namespace zerorun::testing
