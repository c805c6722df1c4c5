// Shared memory between real processes, and what survivors learn when one of them goes.

#include "device/cpu/cpu_stream.h"
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
    EXPECT_THAT(ranks.result(survivor),
                AllOf(HasSubstr("rank 1 (pid"), HasSubstr("died while"), HasSubstr("'bucket 3'")));
  }
  EXPECT_EQ(ranks.result(1), "");
}

TEST(ProcessTest, ADeathIsNoticedWhileMemoryIsAllocated) {
  Processes ranks(2, [](Communicator& communicator, Shared&) -> std::string {
    if (communicator.rank() == 1) _exit(0);
    return error_of([&] { communicator.allocate(1 << 20, Sharing::per_rank); });
  });
  EXPECT_THAT(ranks.result(0), AllOf(HasSubstr("rank 1 (pid"), HasSubstr("allocate")));
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

}  // namespace
}  // namespace zerorun::testing
