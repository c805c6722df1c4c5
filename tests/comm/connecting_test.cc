// Ranks on several hosts, which are threads here, of which one fails while connections are made.
#include "comm/hierarchical/connecting.h"

#include "device/cpu/cpu_stream.h"
#include "tests/harness.h"

namespace zerorun::testing::connecting_test {
namespace {

using Clock = std::chrono::steady_clock;

// Far beyond what a peer's error takes: only a lost one reaches it.
constexpr std::chrono::seconds kTimeout{60};

CommunicatorOptions options_of(int rank, int world_size, std::shared_ptr<Store> store) {
  CommunicatorOptions options = options_of_rank(rank, world_size, std::move(store), kTimeout);
  options.host = std::to_string(rank);
  return options;
}

// The errors of ranks on a host each, of which one is told an interface that is not there.
std::vector<std::string> errors_without_interface(int world_size, int failing) {
  std::vector<std::string> errors(static_cast<size_t>(world_size));
  const auto store = make_memory_store();
  run_threads(world_size, [&](int rank) {
    CommunicatorOptions options = options_of(rank, world_size, store);
    if (rank == failing) options.interface = "nosuch0";
    errors[static_cast<size_t>(rank)] = error_of([&] { make_communicator(options); });
  });
  return errors;
}

TEST(Connecting, AnInterfaceThatOneHostDoesNotHaveIsTheErrorOfAll) {
  for (const int failing : {0, 2}) {
    const auto started = Clock::now();
    for (const std::string& error : errors_without_interface(3, failing)) {
      EXPECT_THAT(error, AllOf(HasSubstr("rank " + std::to_string(failing) + " cannot exchange"),
                               HasSubstr("nosuch0")));
    }
    EXPECT_LT(Clock::now() - started, kTimeout / 2);
  }
}

TEST(Connecting, AnAddressThatEveryHostHasForItselfIsAnError) {
  const auto store = make_memory_store();
  run_threads(2, [&](int rank) {
    CommunicatorOptions options = options_of(rank, 2, store);
    options.interface = "lo";
    options.master_addr = "198.51.100.1";
    EXPECT_THAT(error_of([&] { make_communicator(options); }),
                HasSubstr("'lo' has the address 127.0.0.1, which every host has for itself"));
  });
}

// The store of a rank that fails when it asks for a peer's address.
class BrokenStore final : public testing::ForwardingStore {
 public:
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
  std::vector<std::string> errors(2);
  run_threads(2, [&](int rank) {
    std::shared_ptr<Store> own = store;
    if (rank == 1) own = std::make_shared<BrokenStore>(store);
    errors[static_cast<size_t>(rank)] = error_of([&] {
      const auto communicator = make_communicator(options_of(rank, 2, own));
      // A connection that the system has made for the peer may seem to be one.
      communicator->barrier(*make_inline_stream(), "first").synchronize();
    });
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("rank 1 cannot go on"));
  EXPECT_LT(Clock::now() - started, kTimeout / 2);
}

struct Pair {
  explicit Pair(std::chrono::milliseconds timeout)
      : options([&] {
          CommunicatorOptions common = options_of(0, 2, make_memory_store());
          common.timeout = timeout;
          return common;
        }()) {}

  // What run() says of a connection that nobody makes.
  std::string wait() {
    std::promise<void> cancelled;
    return error_of([&] {
      connecting.run(
          1, [&] { cancelled.get_future().wait(); }, [&] { cancelled.set_value(); });
    });
  }

  GroupOptions options;
  Topology topology{{"a", "b"}};
  hierarchical::Connecting connecting{options, topology};
};

TEST(Connecting, APeersErrorEndsAConnectionThatIsWaitedFor) {
  Pair pair(kTimeout);
  pair.options.store->set(hierarchical::error_key(pair.options), "rank 1 has no memory");
  EXPECT_EQ(pair.wait(), "rank 1 has no memory");
}

TEST(Connecting, AConnectionThatIsWaitedForTooLongIsAnErrorThatNamesThePeer) {
  EXPECT_THAT(Pair(std::chrono::milliseconds(300)).wait(),
              AllOf(HasSubstr("rank 0 waited 0."), HasSubstr("for rank 1 to make a connection"),
                    HasSubstr("GLOO_SOCKET_IFNAME")));
}

TEST(Connecting, AConnectionsOwnErrorIsNotLost) {
  const Pair pair(kTimeout);
  EXPECT_EQ(error_of([&] {
              pair.connecting.run(
                  1, [] { throw CommError("refused"); }, [] {});
            }),
            "refused");
}

}  // namespace
}  // namespace zerorun::testing::connecting_test
