// Errors that ranks get when one of them leaves, diverges, stalls or gives up. None of it may hang.

#include "tests/comm/reference.h"
#include "tests/harness.h"

namespace zerorun::testing {
namespace {

void all_reduce(Communicator& communicator, std::string_view label, size_t nbytes = 8,
                DType dtype = DType::fp32, ReduceOp op = ReduceOp::sum) {
  Bytes values(nbytes);
  const TensorView inout = view(values, dtype);
  communicator.all_reduce(inout, inout, op, Output::overwrite, *make_inline_stream(), label);
}

TEST(FailureTest, ARankThatFailsDoesNotDisturbWhatItsPeersHaveFinished) {
  run_ranks(2, [](Communicator& communicator) {
    for (int time = 0; time < 100; ++time) all_reduce(communicator, "");
    // Rank 1 may be gone before rank 0 looks up from the last one.
  });
}

using Call = std::function<void(Communicator&)>;

struct Divergence {
  std::string name;
  Call one;
  Call other;
};
void PrintTo(const Divergence& divergence, std::ostream* out) { *out << divergence.name; }

class DivergenceTest : public ::testing::TestWithParam<Divergence> {};

TEST_P(DivergenceTest, IsAnErrorNamingBothSidesOnEveryRank) {
  run_ranks(3, [](Communicator& communicator) {
    const Call& call = communicator.rank() == 2 ? GetParam().other : GetParam().one;
    const std::string error = error_of([&] { call(communicator); });
    EXPECT_THAT(error, HasAll("ranks diverged", "rank 0", "rank 2", Not(HasSubstr("rank 1 (pid"))));
    EXPECT_EQ(error_of_barrier(communicator, "later"), error);
  });
}

Call sums(size_t nbytes, DType dtype = DType::fp32, ReduceOp op = ReduceOp::sum) {
  return [=](Communicator& c) { all_reduce(c, "a", nbytes, dtype, op); };
}
Call waits(const char* label) {
  return [=](Communicator& c) { c.barrier(*make_inline_stream(), label); };
}
Call gets_from(int root) {
  return [=](Communicator& c) {
    Bytes values(8);
    c.broadcast(view(values, DType::fp32), root, *make_inline_stream(), "");
  };
}
Call allocates(Sharing sharing, size_t nbytes = 100) {
  return [=](Communicator& c) { c.allocate(nbytes, sharing); };
}

INSTANTIATE_TEST_SUITE_P(
    Calls, DivergenceTest,
    ::testing::Values(Divergence{"operation", sums(8), waits("a")},
                      Divergence{"numel", sums(8), sums(4)},
                      Divergence{"large_numel", sums(1 << 20), sums(4)},
                      Divergence{"dtype", sums(8), sums(4, DType::bf16)},
                      Divergence{"reduce_op", sums(8), sums(8, DType::fp32, ReduceOp::max)},
                      Divergence{"label", waits("bucket 1"), waits("bucket 2")},
                      Divergence{"root", gets_from(0), gets_from(1)},
                      Divergence{"allocation", allocates(Sharing::per_rank),
                                 allocates(Sharing::per_host)},
                      Divergence{"allocated_bytes", allocates(Sharing::per_rank),
                                 allocates(Sharing::per_rank, 200)}),
    [](const auto& divergence) { return divergence.param.name; });

TEST(FailureTest, RanksThatExpectDifferentWorldSizesAreToldSo) {
  const auto store = make_memory_store();
  const auto join = [&](int rank, int world_size) {
    return error_of([&] { make_communicator(options_of_rank(rank, world_size, store)); });
  };
  auto other = std::async(std::launch::async, [&] { return join(1, 3); });
  EXPECT_EQ(join(0, 2), "rank 1 expects 3 ranks, but rank 0 expects 2");
  EXPECT_EQ(other.get(), "rank 1 expects 3 ranks, but rank 0 expects 2");
}

TEST(FailureTest, OneOfTwoProcessesThatAreTheSameRankIsToldSo) {
  const auto store = make_memory_store();
  std::array<std::shared_ptr<Communicator>, 3> joined;
  const auto join = [&](size_t process, int rank) {
    return error_of([&] { joined[process] = make_communicator(options_of_rank(rank, 2, store)); });
  };
  auto one = std::async(std::launch::async, [&] { return join(1, 1); });
  auto other = std::async(std::launch::async, [&] { return join(2, 1); });
  EXPECT_EQ(join(0, 0), "");
  EXPECT_THAT((std::vector{one.get(), other.get()}),
              ::testing::UnorderedElementsAre(
                  "", "rank 1 is taken by another process: each needs its own RANK"));
}

TEST(FailureTest, ErrorsOfAWorkerStreamSurfaceWhenItIsSynchronised) {
  run_ranks(2, [](Communicator& communicator) {
    const auto stream = make_worker_stream("comm");
    communicator.barrier(*stream, "").synchronize();
    if (communicator.rank() == 1) return;
    const Event event = communicator.barrier(*stream, "alone");
    EXPECT_ERROR(event.synchronize(), "rank 1");
    EXPECT_ERROR(stream->synchronize(), "rank 1");
    // Another stream learns it too.
    EXPECT_THAT(error_of_barrier(communicator, "other"), HasSubstr("rank 1"));
  });
}

TEST(FailureTest, ACollectiveThatAFailedStreamSkipsIsTheErrorOfAll) {
  run_ranks(2, [](Communicator& communicator) {
    const auto stream = make_worker_stream("comm");
    if (communicator.rank() == 1) stream->submit([] { throw IoError("disk is full"); });
    const Event event = communicator.barrier(*stream, "checkpoint written");
    if (communicator.rank() == 1) {
      EXPECT_EQ(error_of<IoError>([&] { event.synchronize(); }), "disk is full");
    }
    EXPECT_THAT(error_of_barrier(communicator, "next"),
                HasAll("rank 1", "'checkpoint written'", "was skipped"));
  });
}

TEST(FailureTest, DestroyingTheCommunicatorEndsItsOwnWork) {
  std::promise<void> over;
  std::shared_future<void> when_over = over.get_future();
  const auto store = make_memory_store();
  const auto make = [&](int rank) { return make_communicator(options_of_rank(rank, 2, store)); };
  auto peer = std::async(std::launch::async, [&] {
    const auto communicator = make(1);
    when_over.wait();  // and never joins the barrier
  });
  auto communicator = make(0);
  const auto stream = make_worker_stream("comm");
  const Event event = communicator->barrier(*stream, "pending");
  communicator.reset();
  EXPECT_ERROR(event.synchronize(), "was destroyed");
  over.set_value();
  peer.get();
}

TEST(FailureTest, CallsOnSeveralStreamsKeepTheirOrder) {
  run_ranks(2, [](Communicator& communicator) {
    const auto first = make_worker_stream("first");
    const auto second = make_worker_stream("second");
    Bytes values(8);
    std::promise<void> go;
    std::shared_future<void> when_to_go = go.get_future();
    // The first call cannot start before the second was made; it comes first all the same.
    first->submit([when_to_go] { when_to_go.wait(); });
    communicator.barrier(*first, "one");
    communicator.all_reduce(view(values, DType::fp32), view(values, DType::fp32), ReduceOp::sum,
                            Output::overwrite, *second, "two");
    go.set_value();
    barrier(communicator, "three");
    first->synchronize();
    second->synchronize();
  });
}

}  // namespace
}  // namespace zerorun::testing
