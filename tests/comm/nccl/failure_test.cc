// Errors of ranks that communicate through NCCL when a call, a peer, or NCCL itself fails: each
// says who and where, soon. That each refused call is one: engine_failure_test.cc.
#include <nccl.h>

#include "comm/agreement.h"
#include "device/cuda/runtime/current_device.h"
#include "os/process_identity.h"
#include "tests/comm/nccl/nccl_test.h"
#include "tests/gate.h"

namespace zerorun::testing {
namespace {

constexpr auto kDeadline = 60s;
constexpr auto kSoon = 20s;

struct NcclFailureTest : NcclTest {
  // What a rank does with its stream.
  using Part = std::function<void(Communicator&, CudaDevice&, Stream&)>;

  // Two ranks that have met, and leave when both parts are over.
  void on_two(
      std::chrono::milliseconds timeout, const Part& first,
      const Part& second = [](Communicator&, CudaDevice&, Stream&) {}) {
    std::barrier both(2);
    on_ranks(2, timeout, [&](Communicator& communicator, CudaDevice& device) {
      Stream& stream = device.inline_stream();
      communicator.barrier(stream, "start").synchronize();
      both.arrive_and_wait();
      (communicator.rank() == 0 ? first : second)(communicator, device, stream);
      both.arrive_and_wait();
    });
  }
};

// The error of what has to end long before the deadline; empty: none.
template <typename Wait>
std::string error_of(const Wait& wait) {
  const auto begin = std::chrono::steady_clock::now();
  std::string text = testing::error_of<CommError>(wait);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
  return text;
}
// Of a wait in "bucket 7", to which the other rank does not come.
std::string error_of_wait(Communicator& communicator, Stream& stream) {
  return error_of([&] { communicator.barrier(stream, "bucket 7").synchronize(); });
}

// Memory may have to wait for a GPU that waits for a peer, which only an abort can end.
TEST_F(NcclFailureTest, AnAbortDoesNotWaitForMemory) {
  on_ranks(2, 20s, [&](Communicator& communicator, CudaDevice& device) {
    if (communicator.rank() == 1) {
      EXPECT_THROW(communicator.allocate(1024, Sharing::per_rank), CommError);
      return;
    }
    Gate gate;
    fake::submit(cuda_stream(device.inline_stream()).handle(), [&] { gate.pass(); });
    std::thread other(
        [&] { EXPECT_THROW(communicator.allocate(1024, Sharing::per_rank), CommError); });
    while (fake_.counts()["ncclMemAlloc"] < 2) std::this_thread::yield();  // one of each rank
    communicator.abort("it cannot go on");
    gate.open();
    other.join();
  });
}

// As freeing memory may have to.
TEST_F(NcclFailureTest, AnAbortDoesNotWaitForMemoryThatGoes) {
  std::barrier both(2);
  on_ranks(2, 2s, [&](Communicator& communicator, CudaDevice& device) {
    std::optional<Buffer> memory = communicator.allocate(1024, Sharing::per_rank);
    communicator.barrier(device.inline_stream(), "start").synchronize();
    if (communicator.rank() == 0) {
      communicator.barrier(device.inline_stream(), "bucket 7");
      memory.reset();  // which the deadline ends
      EXPECT_THROW(device.inline_stream().synchronize(), CommError);
    }
    both.arrive_and_wait();
  });
}

// NCCL meets it after the call has returned: only who asks meanwhile learns of it.
TEST_F(NcclFailureTest, AnAsynchronousErrorIsReportedWithRankAndLabelOnAllRanks) {
  const std::string text = "rank 0: barrier 'bucket 7' of 8 bytes failed";
  std::latch failed(1);  // the error shall be rank 0's
  on_two(
      kDeadline,
      [&](Communicator& communicator, CudaDevice&, Stream& stream) {
        Event done = communicator.barrier(stream, "bucket 7");
        fake_.fail("(asynchronous error of NCCL)", 0, ncclRemoteError);
        EXPECT_ERROR(done.synchronize(), text + ": remote process exited");
        EXPECT_THROW(communicator.barrier(stream, "later"), CommError);
        EXPECT_THROW(stream.synchronize(), CommError);
        failed.count_down();
      },
      [&](Communicator& communicator, CudaDevice&, Stream& stream) {
        failed.wait();  // and never comes to bucket 7
        EXPECT_ERROR(communicator.barrier(stream, "bucket 8").synchronize(), text);
      });
  EXPECT_EQ(fake_.failures(), 1);
}

// Calls block, and the first one waits until its peers make theirs. (The fake refuses collectives
// of communicators that do not block: NCCL starts a thread for each.)
TEST_F(NcclFailureTest, AnAbortEndsACallThatWaitsForPeers) {
  on_ranks(2, kDeadline, [&](Communicator& communicator, CudaDevice& device) {
    if (communicator.rank() == 0) {
      EXPECT_ERROR(communicator.barrier(device.inline_stream(), "bucket 7"),
                   "rank 1 aborted the job: it cannot go on");
      return;
    }
    while (fake_.counts()["ncclAllReduce"] < 1) std::this_thread::yield();
    communicator.abort("it cannot go on");
  });
}

// NCCL frees the communicator: a call that has been made uses it, wherever it has got to.
TEST_F(NcclFailureTest, AnAbortLetsACallReturnFirst) {
  on_two(kDeadline, [&](Communicator& communicator, CudaDevice&, Stream& stream) {
    Gate made;
    fake_.before("ncclAllReduce", [&] {
      made.open();
      // An abort that does not wait comes at once.
      const auto until = std::chrono::steady_clock::now() + 200ms;
      while (fake_.counts()["ncclCommAbort"] == 0 && std::chrono::steady_clock::now() < until) {
        std::this_thread::yield();
      }
    });
    std::thread other([&] {
      made.pass();
      communicator.abort("it cannot go on");
    });
    EXPECT_THROW(communicator.barrier(stream, "bucket 7"), CommError);
    other.join();
  });
}

TEST_F(NcclFailureTest, TheDeadlineEndsACallThatWaitsForPeers) {
  std::barrier both(2);
  on_ranks(2, 300ms, [&](Communicator& communicator, CudaDevice& device) {
    if (communicator.rank() == 0) {
      EXPECT_ERROR(communicator.barrier(device.inline_stream(), "bucket 7"), "barrier 'bucket 7'");
    }
    both.arrive_and_wait();
  });
}

// A thread that frees memory waits for all streams, and calls of others for it.
TEST_F(NcclFailureTest, TheDeadlineEndsACallWhileCudaAnswersNobody) {
  on_two(300ms, [&](Communicator& communicator, CudaDevice&, Stream& stream) {
    const Event done = communicator.barrier(stream, "bucket 7");
    fake_.hold_calls();
    const auto begin = std::chrono::steady_clock::now();
    while (fake_.counts()["ncclCommAbort"] == 0 &&
           std::chrono::steady_clock::now() - begin < kSoon) {
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_GT(fake_.counts()["ncclCommAbort"], 0);
    fake_.let_calls_go();
    EXPECT_THROW(done.synchronize(), CommError);
  });
}

// A rank's computation before a collective makes nobody wait for it.
TEST_F(NcclFailureTest, QueuedWorkBeforeACollectiveIsNoDelay) {
  constexpr auto kTimeout = 500ms;
  const Part work = [&](Communicator& communicator, CudaDevice& device, Stream& stream) {
    {
      const CurrentDevice current(device.index());
      fake::submit(cuda_stream(stream).handle(),
                   [&] { std::this_thread::sleep_for(3 * kTimeout); });
    }
    EXPECT_NO_THROW(communicator.barrier(stream, "bucket 1").synchronize());
  };
  on_two(kTimeout, work, work);
}

TEST_F(NcclFailureTest, ARankThatLeavesEndsTheWaitOfItsPeers) {
  on_ranks(2, kDeadline, [&](Communicator& communicator, CudaDevice& device) {
    communicator.barrier(device.inline_stream(), "start").synchronize();
    if (communicator.rank() == 1) return;
    EXPECT_THAT(error_of_wait(communicator, device.inline_stream()),
                ContainsRegex("rank 1 .*left.* while rank 0 waited for it in barrier "
                              "'bucket 7'"));
  });
}

// A rank may be gone before its peers see that its last collective is done.
TEST_F(NcclFailureTest, ARankThatLeavesDoesNotDisturbItsLastCollective) {
  for (int run = 0; run < 20; ++run) {
    on_ranks(2, kDeadline, [&](Communicator& communicator, CudaDevice& device) {
      communicator.barrier(device.inline_stream(), "last").synchronize();
    });
  }
}

// A store in which one rank says that it is a process that has ended.
class StoreOfTheDead final : public ForwardingStore {
 public:
  explicit StoreOfTheDead(std::string key)
      : ForwardingStore(make_memory_store()), key_(std::move(key)) {}
  void set(const std::string& key, const std::string& value) override {
    std::string changed = value;
    if (key == key_) {
      ProcessIdentity process = this_process();
      process.pid = 1 << 30;  // more than there can be
      std::memcpy(changed.data(), &process, sizeof(process));
    }
    ForwardingStore::set(key, changed);
  }

 private:
  const std::string key_;
};

TEST_F(NcclFailureTest, ARankThatDiedIsAnErrorAtOnce) {
  store_ = std::make_shared<StoreOfTheDead>("world/nccl/rank/1");
  std::barrier both(2);
  on_ranks(2, kDeadline, [&](Communicator& communicator, CudaDevice& device) {
    device.share_memory_with(1 - communicator.rank());  // they are no threads of one process now
    communicator.barrier(device.inline_stream(), "start").synchronize();
    if (communicator.rank() == 0) {
      EXPECT_THAT(error_of_wait(communicator, device.inline_stream()),
                  ContainsRegex("rank 1 .*died while rank 0 waited for it in barrier "
                                "'bucket 7'"));
    }
    both.arrive_and_wait();
  });
}

// As NCCL's ranks of a host finalize together from 2.31 on, it would be waited for.
TEST_F(NcclFailureTest, LeavingDoesNotWaitForARankThatDied) {
  store_ = std::make_shared<StoreOfTheDead>("world/nccl/rank/1");
  std::barrier both(2);
  const auto begin = std::chrono::steady_clock::now();
  on_ranks(2, kDeadline, [&](Communicator& communicator, CudaDevice& device) {
    device.share_memory_with(1 - communicator.rank());
    communicator.barrier(device.inline_stream(), "start").synchronize();
    both.arrive_and_wait();
    if (communicator.rank() == 1) communicator.abort("it dies");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
}

TEST_F(NcclFailureTest, LeavingDoesNotWaitLongForARankThatStays) {
  std::barrier both(2);
  on_ranks(2, kDeadline, [&](Communicator& communicator, CudaDevice& device) {
    std::shared_ptr<Communicator> half = communicator.split(0, communicator.rank(), "half");
    half->barrier(device.inline_stream(), "start").synchronize();
    if (communicator.rank() == 1) both.arrive_and_wait();
    const auto begin = std::chrono::steady_clock::now();
    half.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
    if (communicator.rank() == 0) both.arrive_and_wait();
  });
}

// A store that breaks in a way that is none of zerorun's errors, from break_now() on.
class BreakingStore final : public ForwardingStore {
 public:
  BreakingStore() : ForwardingStore(make_memory_store()) {}
  void break_now() { broken_ = true; }

  std::optional<std::string> find(const std::string& key) override {
    if (broken_ && key == "world/nccl/error") throw std::runtime_error("the store broke");
    return ForwardingStore::find(key);
  }

 private:
  std::atomic<bool> broken_ = false;
};

TEST_F(NcclFailureTest, AnyErrorOfTheWatcherIsOneOfTheCollective) {
  const auto store = std::make_shared<BreakingStore>();
  store_ = store;
  on_two(kDeadline, [&](Communicator& communicator, CudaDevice&, Stream& stream) {
    store->break_now();
    EXPECT_THAT(error_of_wait(communicator, stream), HasSubstr("the store broke"));
  });
}

TEST_F(NcclFailureTest, ARankThatNeverJoinsIsAnErrorAfterTheDeadline) {
  fake_.set_devices(1);
  const CommunicatorOptions options =
      options_of_rank(0, 2, make_memory_store(), 50ms, std::make_shared<CudaDevice>(0, 0));
  EXPECT_THROW(make_nccl_communicator(options), CommError);
}

TEST_F(NcclFailureTest, AnErrorWithinAGroupEndsTheGroupAndNamesIt) {
  const auto gather_three = [](Communicator& communicator, CudaDevice& device) {
    const Buffer memory = *communicator.allocate(4096, Sharing::per_rank);
    const Drain drain{device};
    Stream& stream = device.inline_stream();
    const auto gather = [&](int64_t i) {
      const TensorView whole = view_of(memory, DType::bf16, 2048).slice(i * 600, 600);
      communicator.all_gather(whole.slice(communicator.rank() * 300, 300), whole, Sync::one_sided,
                              stream, "bucket " + std::to_string(i));
    };
    communicator
        .coalesced(stream,
                   [&] {
                     for (const int64_t i : {0, 1, 2}) gather(i);
                   })
        .synchronize();
  };
  for (const std::string name : {"ncclGroupStart", "ncclAllGather", "ncclGroupEnd"}) {
    fake_.reset();
    fake_.fail(name, 0, ncclSystemError);
    on_ranks(2, 500ms, [&](Communicator& communicator, CudaDevice& device) {
      EXPECT_ERROR_OF(CommError, gather_three(communicator, device), "bucket 0", "and 2 more")
          << name;
    });
    std::map<std::string, int> counts = fake_.counts();
    EXPECT_EQ(counts["ncclGroupStart"] - (name == "ncclGroupStart" ? 1 : 0),
              counts["ncclGroupEnd"]);
  }
}

TEST_F(NcclFailureTest, ReducesWithoutCopiesWhereDtypesAgree) {
  on_ranks(2, 10s, [&](Communicator& communicator, CudaDevice& device) {
    Stream& stream = device.inline_stream();
    const Buffer full = *communicator.allocate(1024, Sharing::per_rank);
    const Buffer part = device.allocate(1024, MemoryCategory::buckets);
    // All ranks have come and count; the next barrier is over when all have counted.
    const auto work = [&] {
      communicator.barrier(stream, "").synchronize();
      std::map<std::string, int> counts = fake_.counts();
      communicator.barrier(stream, "").synchronize();
      return counts["cudaMemcpyAsync"] + counts["cudaLaunchKernel"] +
             counts["cudaMallocFromPoolAsync"];
    };
    const int before = work();
    const TensorView in = view_of(full, DType::bf16, 16);
    const TensorView out = view_of(part, DType::bf16, 8);
    communicator.reduce_scatter(in, out, Output::overwrite, stream, "");
    communicator.all_gather(out, in, Sync::collective, stream, "");
    EXPECT_EQ(work(), before);
  });
}

// It has not come to its group yet, whose other rank waits for it there.
TEST_F(NcclFailureTest, ARankThatFailsDuringASplitEndsItForAllGroups) {
  on_ranks(4, kDeadline, [&](Communicator& world, CudaDevice& device) {
    const int color = world.rank() / 2;
    if (world.rank() == 3) {
      Agreement(world, device.inline_stream())
          .gather(std::array<int64_t, 2>{color, 0}, "colors and keys of a split");
      return world.abort("it cannot go on");
    }
    EXPECT_ERROR(world.split(color, 0, "half"), "it cannot go on");
  });
}

}  // namespace
}  // namespace zerorun::testing
