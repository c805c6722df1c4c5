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

TEST(Connecting, AnInterfaceThatOneHostDoesNotHaveIsTheErrorOfAll) {
  for (const int failing : {0, 2}) {
    const auto started = Clock::now();
    const auto store = make_memory_store();
    run_threads(3, [&](int rank) {
      CommunicatorOptions options = options_of(rank, 3, store);
      if (rank == failing) options.interface = "nosuch0";
      EXPECT_THAT(error_of([&] { make_communicator(options); }),
                  AllOf(HasSubstr("rank " + std::to_string(failing) + " cannot exchange"),
                        HasSubstr("nosuch0")));
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
  common.timeout = std::chrono::milliseconds(300);
  const GroupOptions options(common);
  const Topology topology({"a", "b"});
  hierarchical::Connecting connecting(options, topology);
  std::promise<void> cancelled;
  EXPECT_THAT(error_of([&] {
                connecting.run(
                    1, [&] { cancelled.get_future().wait(); }, [&] { cancelled.set_value(); });
              }),
              AllOf(HasSubstr("rank 0 waited 0."), HasSubstr("for rank 1 to make a connection"),
                    HasSubstr("GLOO_SOCKET_IFNAME")));
}

}  // namespace
}  // namespace zerorun::testing::connecting_test
