// Ranks on several hosts, which are threads here: what they compute on different layouts, and what
// they say when one of them fails.
#include "comm/group_communicator.h"
#include "comm/hierarchical/connecting.h"
#include "comm/hierarchical/topology.h"
#include "comm/waiting.h"
#include "tests/comm/reference.h"
#include "tests/harness.h"

namespace zerorun::testing {
namespace {

const HostOf kPairs = hosts_of("aabb");

TEST(TopologyTest, HostsCountFromRankZeroOnAndShareTheirTraffic) {
  const Topology topology({"x", "y", "x", "y", "y"});
  EXPECT_EQ(topology.hosts(), 2);
  EXPECT_THAT(topology.ranks_of(0), ElementsAre(0, 2));
  EXPECT_THAT(topology.ranks_of(1), ElementsAre(1, 3, 4));
  EXPECT_EQ(topology.host_of(4), 1);
  EXPECT_EQ(topology.local_rank(4), 2);
  // Ranks 1 and 4, the first and third of their host, are served by the first of the other.
  EXPECT_EQ(topology.relay(0, 1), 0);
  EXPECT_EQ(topology.relay(0, 3), 2);
  EXPECT_EQ(topology.relay(0, 4), 0);
  EXPECT_EQ(topology.relay(1, 2), 3);
}

TEST(WaitingNoticeTest, ComesAfterTenSecondsAndThenAtGrowingIntervals) {
  WaitingNotice notice;
  std::vector<int> told;
  for (int second = 0; second <= 100; ++second) {
    if (notice.due(std::chrono::seconds(second))) told.push_back(second);
  }
  EXPECT_THAT(told, ElementsAre(10, 20, 40, 80));
}

TEST(HostsTest, AnyLayoutAddsWithinTheDocumentedBound) {
  constexpr int kRanks = 5;
  constexpr int64_t kNumel = 3001;
  std::vector<Bytes> inputs;
  for (unsigned rank = 0; rank < kRanks; ++rank) {
    inputs.push_back(random_values(DType::fp32, kNumel, rank));
  }
  // Neither side by side nor powers of two.
  run_ranks({.ranks = kRanks, .host_of = hosts_of("abbab")}, [&](Communicator& communicator) {
    Bytes in = inputs[static_cast<size_t>(communicator.rank())];
    Bytes out(in.size());
    communicator
        .all_reduce(view(in, DType::fp32), view(out, DType::fp32), ReduceOp::sum, Output::overwrite,
                    *make_inline_stream(), "")
        .synchronize();
    for (int64_t i = 0; i < kNumel; ++i) {
      double sum = 0;
      double magnitude = 0;
      for (const Bytes& input : inputs) {
        const double value = float_at(input.data(), DType::fp32, i);
        sum += value;
        magnitude += std::abs(value);
      }
      const double bound = 2 * (std::log2(kRanks) + 2) * 0x1p-24 * magnitude;
      ASSERT_NEAR(float_at(out.data(), DType::fp32, i), sum, bound) << i;
    }
  });
}

// The sums of four ranks on the layout, of inputs that are the same on each.
Bytes sum_on(const std::function<std::string(int)>& host_of, DType in, DType out, Output output,
             int64_t numel, std::optional<DType> bound = {}) {
  Bytes result;
  run_ranks({.ranks = 4, .host_of = host_of}, [&](Communicator& communicator) {
    if (bound) bound_link(communicator, *bound);
    const auto stream = make_worker_stream("comm");
    Bytes input = random_values(in, numel, static_cast<unsigned>(communicator.rank()));
    Bytes values = random_values(out, numel, 77);
    const TensorView to = view(values, out);
    communicator.all_reduce(view(input, in), to, ReduceOp::sum, output, *stream, "bucket")
        .synchronize();
    Bytes other = values;
    communicator.broadcast(view(other, out), 3, *stream, "rank 3's").synchronize();
    EXPECT_TRUE(other == values) << "ranks differ";
    if (communicator.rank() == 0) result = std::move(values);
  });
  return result;
}

TEST(HostsTest, SumsOfManyChunksHaveTheSameBitsOnAnyLayout) {
  const int64_t numel = (int64_t{7} << 19) + 17;  // of 4 MiB each, and a part of one
  for (const auto& [in, out, output] : {std::tuple(DType::fp32, DType::fp32, Output::overwrite),
                                        std::tuple(DType::bf16, DType::bf16, Output::overwrite),
                                        std::tuple(DType::bf16, DType::fp32, Output::accumulate)}) {
    const auto on = [&, in = in, out = out, output = output](int ranks_of_host) {
      return sum_on(hosts_of(ranks_of_host), in, out, output, numel);
    };
    const Bytes together = on(4);
    EXPECT_TRUE(together == on(2)) << name_of(in) << " on two hosts";
    EXPECT_TRUE(together == on(1)) << name_of(in) << " on four hosts";
  }
}

// Gathering what a reduce_scatter of the inputs gave is an all_reduce of them.
void expect_parts_of_sum(const std::string& hosts, DType dtype, int64_t row) {
  const auto ranks = static_cast<int>(hosts.size());
  run_ranks({.ranks = ranks, .host_of = hosts_of(hosts)}, [&](Communicator& communicator) {
    const auto stream = make_worker_stream("comm");
    Bytes in = random_values(dtype, row * ranks, static_cast<unsigned>(communicator.rank()));
    Bytes sum(in.size());
    Bytes part(in.size() / hosts.size());
    Bytes parts(in.size());
    const TensorView own = view(part, dtype);
    communicator.all_reduce(view(in, dtype), view(sum, dtype), ReduceOp::sum, Output::overwrite,
                            *stream, "");
    communicator.reduce_scatter(view(in, dtype), own, Output::overwrite, *stream, "");
    communicator.all_gather(own, view(parts, dtype), Sync::collective, *stream, "").synchronize();
    EXPECT_TRUE(parts == sum) << "rank " << communicator.rank();
  });
}

TEST(HostsTest, PartsOfManyChunksAreThoseOfTheSum) {
  const int64_t row = (int64_t{9} << 17) + 5;  // elements; a chunk has 2^18 of fp32 or less
  for (const auto& [hosts, dtype] : {std::pair("aabb", DType::fp32), std::pair("aabb", DType::bf16),
                                     std::pair("abab", DType::bf16), std::pair("abc", DType::fp32),
                                     std::pair("aab", DType::bf16)}) {
    SCOPED_TRACE(fmt::format("{} {}", hosts, name_of(dtype)));
    expect_parts_of_sum(hosts, dtype, row);
  }
}

TEST(HostsTest, ABoundLinkCarriesSumsOfHostsInThatDtypeAndNoOthers) {
  constexpr int64_t kNumel = 5003;
  const auto sum = [&](DType in, std::optional<DType> bound) {
    return sum_on(kPairs, in, in, Output::overwrite, kNumel, bound);
  };
  const Bytes bound = sum(DType::bf16, DType::bf16);
  std::vector<Bytes> inputs;
  for (unsigned rank = 0; rank < 4; ++rank) {
    inputs.push_back(random_values(DType::bf16, kNumel, rank));
  }
  const auto value = [&](size_t rank, int64_t i) {
    return float_at(inputs[rank].data(), DType::bf16, i);
  };
  for (int64_t i = 0; i < kNumel; ++i) {
    const float first = to_float(to_bf16(value(0, i) + value(1, i)));
    const float second = to_float(to_bf16(value(2, i) + value(3, i)));
    ASSERT_EQ(float_at(bound.data(), DType::bf16, i), to_float(to_bf16(first + second)));
  }
  EXPECT_FALSE(bound == sum(DType::bf16, {}));
  EXPECT_TRUE(sum(DType::fp32, DType::bf16) == sum(DType::fp32, {}));
}

TEST(HostsTest, TheTransportSaysWhatItIs) {
  run_ranks({.ranks = 4, .host_of = kPairs}, [](Communicator& communicator) {
    EXPECT_EQ(communicator.transport(), "shm+gloo");
    EXPECT_EQ(communicator.local_world_size(), 2);
    EXPECT_FALSE(communicator.reads_peers());
  });
  run_ranks({.ranks = 2, .host_of = hosts_of(1)}, [](Communicator& communicator) {
    EXPECT_EQ(communicator.transport(), "gloo");
    EXPECT_EQ(communicator.local_world_size(), 1);
  });
}

TEST(HostsTest, ARankThatDoesNotJoinIsNamed) {
  const auto store = make_memory_store();
  run_threads(2, [&](int rank) {
    CommunicatorOptions options =
        options_of_rank(rank, 3, store, std::chrono::milliseconds(rank == 0 ? 300 : 2000));
    options.host = std::to_string(rank);
    const std::string error = error_of([&] { make_communicator(options); });
    EXPECT_THAT(error, HasAll(fmt::format("rank {} waited", rank),
                              rank == 0 ? "2 of 3 to join" : "all 3 ranks"));
  });
}

// Ranks on several hosts, which are threads here, of which one fails while connections are made.
using Clock = std::chrono::steady_clock;

// Far beyond what a peer's error takes: only a lost one reaches it.
constexpr auto kTimeout = 60s;

CommunicatorOptions options_of(int rank, int world_size, std::shared_ptr<Store> store) {
  CommunicatorOptions options = options_of_rank(rank, world_size, std::move(store), kTimeout);
  options.host = std::to_string(rank);
  return options;
}

TEST(Connecting, AnInterfaceThatOneHostDoesNotHaveIsTheErrorOfAll) {
  for (const int failing : {0, 2}) {
    const auto started = Clock::now();
    const auto store = make_memory_store();
    run_threads(3, [&](int rank) {
      CommunicatorOptions options = options_of(rank, 3, store);
      if (rank == failing) options.interface = "nosuch0";
      EXPECT_ERROR(make_communicator(options),
                   "rank " + std::to_string(failing) + " cannot exchange", "nosuch0");
    });
    EXPECT_LT(Clock::now() - started, kTimeout / 2);
  }
}

TEST(Connecting, AnAddressThatEveryHostHasForItselfIsAnError) {
  const auto store = make_memory_store();
  run_threads(2, [&](int rank) {
    CommunicatorOptions options = options_of(rank, 2, store);
    options.interface = "lo";
    options.master_addr = "198.51.100.1";
    EXPECT_ERROR(make_communicator(options),
                 "'lo' has the address 127.0.0.1, which every host has for itself");
  });
}

// The store of a rank that fails when it asks for a peer's address.
struct BrokenStore final : testing::ForwardingStore {
  using ForwardingStore::ForwardingStore;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    if (key.find("/link/") != std::string::npos) throw CommError("rank 1 cannot go on");
    return ForwardingStore::get(key, timeout);
  }
};

// It has told its address, so its peer waits for it inside Gloo.
TEST(Connecting, ARankThatFailsAfterItHasToldItsAddressIsHeard) {
  const auto started = Clock::now();
  const auto store = make_memory_store();
  run_threads(2, [&](int rank) {
    std::shared_ptr<Store> own = store;
    if (rank == 1) own = std::make_shared<BrokenStore>(store);
    EXPECT_THAT(error_of([&] {
                  const auto communicator = make_communicator(options_of(rank, 2, own));
                  // A connection that the system has made for the peer may seem to be one.
                  barrier(*communicator, "first");
                }),
                HasSubstr("rank 1 cannot go on"));
  });
  EXPECT_LT(Clock::now() - started, kTimeout / 2);
}

TEST(Connecting, AConnectionThatIsWaitedForTooLongIsAnErrorThatNamesThePeer) {
  CommunicatorOptions common = options_of(0, 2, make_memory_store());
  common.timeout = 300ms;
  const GroupOptions options(common);
  const Topology topology({"a", "b"});
  hierarchical::Connecting connecting(options, topology);
  std::promise<void> cancelled;
  EXPECT_THAT(error_of([&] {
                connecting.run(
                    1, [&] { cancelled.get_future().wait(); }, [&] { cancelled.set_value(); });
              }),
              HasAll("rank 0 waited 0.", "for rank 1 to make a connection", "GLOO_SOCKET_IFNAME"));
}

}  // namespace
}  // namespace zerorun::testing
