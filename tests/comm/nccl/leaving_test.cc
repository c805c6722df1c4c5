// NCCL's ranks whose store is rank 0's, over TCP: what they learn when that goes, and who is gone.
#include <nccl.h>
#include <signal.h>

#include "tests/comm/nccl/nccl_test.h"

namespace zerorun::testing::nccl_leaving {
namespace {

constexpr auto kDeadline = 60s;  // which no test meets

// A child that does nothing for as long as this lives, and has copies of all sockets.
class IdleChild {
 public:
  IdleChild() : pid_(fork()) {
    if (pid_ != 0) return;
    ::alarm(120);
    while (true) ::pause();
  }
  IdleChild(const IdleChild&) = delete;
  IdleChild& operator=(const IdleChild&) = delete;
  ~IdleChild() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  const pid_t pid_;
};

// Counts how often it was looked in after it had gone.
class CountingStore final : public ForwardingStore {
 public:
  CountingStore(std::shared_ptr<Store> store, std::atomic<int>& vain)
      : ForwardingStore(std::move(store)), vain_(vain) {}
  std::optional<std::string> find(const std::string& key) override {
    try {
      return ForwardingStore::find(key);
    } catch (const CommError&) {
      if (!key.ends_with("stall asked")) ++vain_;
      throw;
    }
  }

 private:
  std::atomic<int>& vain_;
};

struct NcclLeavingTest : FakeCudaTest {
  void SetUp() override {
    FakeCudaTest::SetUp();
    fake_.set_devices(2);
    fake_.set_nccl_version(22809);  // whose ranks do not leave together
    tcp_.secret = "s";
    tcp_.timeout = kDeadline;
    tcp_.serve = true;
    server_ = make_tcp_store(tcp_);
    tcp_.port = bound_port(*server_);
    tcp_.serve = false;
  }

  // Rank 0 has the only reference to its store.
  CommunicatorOptions options_of(int rank) {
    auto store = rank == 0 ? std::move(server_)
                           : std::make_shared<CountingStore>(make_tcp_store(tcp_), vain_);
    return options_of_rank(rank, 2, std::move(store), kDeadline,
                           std::make_shared<CudaDevice>(rank, 0));
  }

  // Two ranks that have met. What they get is theirs to end.
  using Body = std::function<void(int, std::shared_ptr<Communicator>, CudaDevice&)>;
  void on_ranks(const Body& body) {
    run_threads(2, [&](int rank) {
      std::shared_ptr<Device> device;
      std::shared_ptr<Communicator> communicator;
      {
        CommunicatorOptions options = options_of(rank);
        device = options.device;
        communicator = make_nccl_communicator(options);
      }
      auto& cuda = static_cast<CudaDevice&>(*device);
      communicator->barrier(cuda.inline_stream(), "start").synchronize();
      body(rank, std::move(communicator), cuda);
    });
  }

  std::shared_ptr<Store> server_;
  TcpStoreOptions tcp_;
  std::atomic<int> vain_ = 0;
};

std::string error_of_barrier(Communicator& communicator, CudaDevice& device) {
  return error_of<CommError>(
      [&] { communicator.barrier(device.inline_stream(), "bucket 7").synchronize(); });
}

TEST_F(NcclLeavingTest, RankZeroStaysUntilItsPeersKnowThatItLeft) {
  on_ranks([&](int rank, std::shared_ptr<Communicator> communicator, CudaDevice& device) {
    if (rank == 0) return communicator.reset();
    EXPECT_THAT(error_of_barrier(*communicator, device),
                HasAll("rank 0", "left (its communicator was destroyed)", "'bucket 7'"));
  });
}

TEST_F(NcclLeavingTest, WhyRankZeroEndedTheJobReachesItsPeers) {
  on_ranks([&](int rank, std::shared_ptr<Communicator> communicator, CudaDevice& device) {
    if (rank == 0) {
      communicator->abort("no more data");
      return communicator.reset();
    }
    EXPECT_THAT(error_of_barrier(*communicator, device), HasSubstr("no more data"));
  });
}

// It works on alone for longer than rank 0 waits. Each look would hold up its other groups.
TEST_F(NcclLeavingTest, AStoreThatIsGoneEndsLaterWaits) {
  std::barrier both(2);
  on_ranks([&](int rank, std::shared_ptr<Communicator> communicator, CudaDevice& device) {
    if (rank == 0) {
      communicator.reset();
      return both.arrive_and_wait();
    }
    both.arrive_and_wait();
    EXPECT_THAT(error_of_barrier(*communicator, device),
                HasAll("rank 0 left, and the store with it", "'bucket 7'"));
    EXPECT_LE(vain_, 1);
  });
}

TEST_F(NcclLeavingTest, RankZeroThatGoesWhileOthersJoinIsAnErrorAtOnce) {
  const CommunicatorOptions options = options_of(1);
  server_.reset();
  EXPECT_ERROR_OF(CommError, make_nccl_communicator(options), "rank 1", "rank 0");
}

// A data loader's worker of rank 0 has its sockets, so they do not close when it leaves.
TEST_F(NcclLeavingTest, AWorkerThatLivesOnKeepsNobody) {
  std::barrier both(2);
  std::optional<IdleChild> worker;
  on_ranks([&](int rank, std::shared_ptr<Communicator> communicator, CudaDevice& device) {
    if (rank == 0) worker.emplace();
    both.arrive_and_wait();
    communicator->barrier(device.inline_stream(), "last").synchronize();
    if (rank == 1) both.arrive_and_wait();  // rank 0 has left
    const auto begin = std::chrono::steady_clock::now();
    communicator.reset();
    if (rank == 0) return both.arrive_and_wait();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kDeadline / 2);
  });
}

TEST_F(NcclLeavingTest, AForkedChildThatEndsItsCopyDoesNotLeave) {
  on_ranks([&](int rank, std::shared_ptr<Communicator> communicator, CudaDevice& device) {
    if (rank == 1) {
      const pid_t child = fork();
      if (child == 0) {
        ::alarm(1);  // what else it has of CUDA has no threads here
        communicator.reset();
        ::_exit(0);
      }
      ::waitpid(child, nullptr, 0);
    }
    EXPECT_EQ(error_of_barrier(*communicator, device), "");
  });
}

// Ranks that join through NCCL, whose first communicator does not block: each of its calls is done
// later, by a thread of NCCL's, which stores the handle of the second one whenever it gets there.
struct NcclJoiningTest : NcclTest {
  // Each rank's error while it joins; empty: none.
  std::vector<std::string> errors_of_joining(int ranks) {
    fake_.set_devices(ranks);
    const auto store = make_memory_store();
    std::vector<std::string> errors(static_cast<size_t>(ranks));
    run_threads(ranks, [&](int rank) {
      const CommunicatorOptions options =
          options_of_rank(rank, ranks, store, kDeadline, std::make_shared<CudaDevice>(rank, 0));
      errors[static_cast<size_t>(rank)] =
          error_of<CommError>([&] { make_nccl_communicator(options); });
    });
    return errors;
  }
};

// NCCL stores a handle all the same, of what has to be ended.
TEST_F(NcclJoiningTest, ASplitThatFailsLaterIsAnError) {
  fake_.fail("(NCCL's thread splits)", 0, ncclSystemError);
  EXPECT_THAT(errors_of_joining(2), Contains(HasAll("ncclCommSplit", "failed: unhandled")));
}

// NCCL's thread waits for it, and stores a handle when the communicator is aborted.
TEST_F(NcclJoiningTest, ARankThatCannotSplitEndsTheSplitOfItsPeers) {
  fake_.fail("ncclCommSplit", 0, ncclSystemError);
  const std::vector<std::string> errors = errors_of_joining(3);
  EXPECT_THAT(errors, ::testing::Each(HasAll("ncclCommSplit", "failed: unhandled")));
}

TEST_F(NcclJoiningTest, TheFirstCommunicatorEndsInOrder) {
  for (const char* name : {"ncclCommFinalize", "ncclCommDestroy"}) {
    fake_.reset();
    fake_.fail(name, 0, ncclSystemError);
    EXPECT_THAT(errors_of_joining(2), Contains(HasSubstr("failed: unhandled"))) << name;
  }
}

// What ncclCommAbort frees, ncclCommFinalize still uses in another thread.
TEST_F(NcclJoiningTest, ARankThatLeavesFinalizesWhenItsCallsAreDone) {
  std::barrier both(2);
  on_ranks(2, 300ms, [&](Communicator& world, CudaDevice& device) {
    world.barrier(device.inline_stream(), "start").synchronize();
    if (world.rank() == 0) {
      world.barrier(device.inline_stream(), "to which rank 1 does not come");
    } else {
      while (fake_.counts()["ncclCommAbort"] == 0) std::this_thread::yield();
    }
  });
}

}  // namespace
}  // namespace zerorun::testing::nccl_leaving
