// Memory that ranks allocate together: what collectives on it cost, its life, and what it leaves.
#include <sys/mman.h>

#include "comm/shm/segment.h"
#include "os/host_limits.h"
#include "tests/comm/reference.h"
#include "tests/harness.h"

namespace zerorun::testing {
namespace {

int64_t open_files() { return entries("/proc/self/fd"); }

TEST(SharedMemoryTest, NothingStaysBehind) {
  const int64_t files_before = open_files();
  ASSERT_EQ(mapped_segments(), 0);
  run_ranks(3, [&](Communicator& communicator) {
    const auto first = communicator.allocate(1 << 20, Sharing::per_rank);
    const auto second = communicator.allocate(1 << 20, Sharing::per_host);
    barrier(communicator, "allocated");
    // Not even while it is in use. One rank looks: looking opens a file itself.
    if (communicator.rank() == 0) {
      EXPECT_EQ(open_files(), files_before);
      EXPECT_GT(mapped_segments(), 0);  // which have no name that could outlive the job
    }
    barrier(communicator, "looked");
  });
  EXPECT_EQ(open_files(), files_before);
  EXPECT_EQ(mapped_segments(), 0);
}

TEST(SharedMemoryTest, NothingStaysBehindAfterAFailure) {
  const int64_t files_before = open_files();
  EXPECT_THROW(run_ranks(2,
                         [](Communicator& communicator) {
                           const auto buffer = communicator.allocate(4096, Sharing::per_rank);
                           if (communicator.rank() == 1) throw IoError("disk is full");
                           communicator.barrier(*make_inline_stream(), "never");
                         }),
               CommError);
  EXPECT_EQ(open_files(), files_before);
  EXPECT_EQ(mapped_segments(), 0);
}

TEST(SharedMemoryTest, PagesAreThereAtOnceOrWhenTheyAreWritten) {
  constexpr size_t kPages = 100;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  run_ranks(2, [&](Communicator& communicator) {
    const auto present = [&](const Buffer& memory) {
      std::vector<unsigned char> pages(kPages);
      EXPECT_EQ(mincore(memory.data(), kPages * page, pages.data()), 0);
      return std::count_if(pages.begin(), pages.end(), [](unsigned char is) { return is & 1; });
    };
    const Buffer now = *communicator.allocate(kPages * page, Sharing::per_rank);
    EXPECT_EQ(present(now), kPages);
    const Buffer later = *communicator.allocate(kPages * page, Sharing::per_rank_on_write);
    EXPECT_EQ(present(later), 0);
    later.data()[0] = std::byte{1};
    EXPECT_GE(present(later), 1);
  });
}

TEST(SharedMemoryTest, BuffersOutliveTheCommunicatorInAnyOrder) {
  std::vector<Buffer> kept(3);
  run_ranks(3, [&](Communicator& communicator) {
    kept[static_cast<size_t>(communicator.rank())] =
        *communicator.allocate(1000, Sharing::per_rank);
  });
  for (const size_t rank : {1, 0, 2}) {
    std::fill_n(kept[rank].data(), 1000, std::byte{7});
    kept[rank] = Buffer();
  }
  EXPECT_EQ(mapped_segments(), 0);
}

TEST(SharedMemoryTest, ASettledGatherNeedsNoHelpFromThePeers) {
  for (const Sharing sharing : {Sharing::per_rank, Sharing::per_host}) {
    run_ranks(3, [&](Communicator& communicator) {
      const auto stream = make_inline_stream();
      const int rank = communicator.rank();
      const int64_t part = 10007;
      const int64_t first = sharing == Sharing::per_host ? rank * part : 0;
      const Buffer memory = *communicator.allocate(static_cast<size_t>(3 * part + 5) * 4, sharing);
      const TensorView in = view_of(memory, DType::fp32, 3 * part + 5).slice(first + 5, part);
      const Bytes mine = random_values(DType::fp32, part, static_cast<unsigned>(rank));
      std::copy(mine.begin(), mine.end(), in.data);
      barrier(communicator, "values are there");
      ASSERT_TRUE(communicator.reads_peers());
      // Each rank asks a different number of times; it counts, but does not disturb the others.
      for (int time = 0; time < rank; ++time) {
        Bytes out(mine.size() * 3);
        const TensorView whole = view(out, DType::fp32);
        communicator.all_gather(in, whole, Sync::one_sided, *stream, "expert").synchronize();
        for (int peer = 0; peer < 3; ++peer) {
          expect_same(random_values(DType::fp32, part, static_cast<unsigned>(peer)),
                      whole.slice(peer * part, part), "gathered");
        }
      }
      EXPECT_EQ(communicator.stats()[Collective::all_gather].calls, rank);
      Bytes other(mine.size());  // is no memory that peers read
      EXPECT_THAT(error_of<InternalError>([&] {
                    Bytes out(mine.size() * 3);
                    communicator.all_gather(view(other, DType::fp32), view(out, DType::fp32),
                                            Sync::one_sided, *stream, "expert");
                  }),
                  HasSubstr("expert"));
      barrier(communicator, "over");
    });
  }
}

TEST(SharedMemoryTest, OneCopyForAllRanksIsGatheredAndReducedInPlace) {
  run_ranks(3, [](Communicator& communicator) {
    const auto stream = make_inline_stream();
    const int rank = communicator.rank();
    for (const int64_t part : {int64_t{5}, int64_t{100003}}) {
      const Bytes expected = random_values(DType::bf16, 3 * part, 1);
      const Buffer memory = *communicator.allocate(expected.size(), Sharing::per_host);
      const TensorView whole = view_of(memory, DType::bf16, 3 * part);
      const TensorView own = whole.slice(rank * part, part);
      const size_t offset = static_cast<size_t>(rank) * own.nbytes();

      const auto check = [&](const Bytes& values, const char* what) {
        expect_same(values, whole, what);
        barrier(communicator, "compared");
      };
      std::copy_n(expected.data() + offset, own.nbytes(), own.data);
      communicator.all_gather(own, whole, Sync::collective, *stream, "in place");
      check(expected, "gathered in place");
      Bytes mine(expected.data() + offset, expected.data() + offset + own.nbytes());
      std::fill_n(own.data, own.nbytes(), std::byte{0});
      communicator.all_gather(view(mine, DType::bf16), whole, Sync::collective, *stream, "private");
      check(expected, "gathered from private memory");

      // Every rank gives the same memory and gets it: three times the values.
      Bytes sum = expected;
      reference_reduce({expected, expected, expected}, DType::bf16, ReduceOp::sum,
                       Output::overwrite, DType::bf16, sum);
      communicator.all_reduce(whole, whole, ReduceOp::sum, Output::overwrite, *stream, "");
      check(sum, "reduced in place");
      communicator.broadcast(whole, 1, *stream, "");
      check(sum, "broadcast in place");
    }
  });
}

TEST(SharedMemoryTest, RanksMayMixSharedAndPrivateMemory) {
  run_ranks(3, [](Communicator& communicator) {
    const auto stream = make_inline_stream();
    const int64_t numel = 90001;
    const Buffer memory = *communicator.allocate(numel * 4, Sharing::per_rank);
    std::vector<Bytes> inputs;
    for (unsigned rank = 0; rank < 3; ++rank) {
      inputs.push_back(random_values(DType::fp32, numel, rank));
    }
    Bytes expected = inputs[0];
    reference_reduce(inputs, DType::fp32, ReduceOp::sum, Output::overwrite, DType::fp32, expected);
    for (int odd_one = 0; odd_one < 3; ++odd_one) {
      Bytes own = inputs[static_cast<size_t>(communicator.rank())];
      const TensorView private_view = view(own, DType::fp32);
      const TensorView shared_view = view_of(memory, DType::fp32, numel);
      std::copy(own.begin(), own.end(), shared_view.data);
      const TensorView inout = communicator.rank() == odd_one ? private_view : shared_view;
      communicator.all_reduce(inout, inout, ReduceOp::sum, Output::overwrite, *stream, "mixed");
      expect_same(expected, inout, fmt::format("private on rank {}", odd_one));
    }
  });
}

TEST(SharedMemoryTest, MoreThanTheHostHasIsAnErrorOnEveryRank) {
  for (const size_t nbytes : {host_limits().available_bytes(), size_t{1} << 63}) {
    run_ranks(2, [&](Communicator& communicator) {
      EXPECT_ERROR(communicator.allocate(nbytes, Sharing::per_rank), "cannot allocate");
    });
  }
}

// What will be written there is in memory until then.
TEST(SharedMemoryTest, WhatIsWrittenLaterNeedNotBeAvailableYet) {
  const size_t nbytes = host_limits().available_bytes() / 2 + (size_t{64} << 20);
  run_ranks(2, [&](Communicator& communicator) {
    EXPECT_TRUE(communicator.allocate(nbytes, Sharing::per_rank_on_write));
  });
}

TEST(SharedMemoryTest, MemoryThatAPeerHasFreedIsAnError) {
  run_ranks(2, [](Communicator& communicator) {
    std::optional<Buffer> memory = communicator.allocate(1 << 20, Sharing::per_rank);
    Bytes own(1 << 20);
    if (communicator.rank() == 0) memory.reset();
    TensorView in = view(own, DType::fp32);
    if (memory) in.data = memory->data();
    Bytes part(1 << 19);
    EXPECT_ERROR_OF(CommError,
                    communicator.reduce_scatter(in, view(part, DType::fp32), Output::overwrite,
                                                *make_inline_stream(), "freed"),
                    "has freed");
  });
}

// A rank's share of memory may begin within a page, where pages are large.
TEST(SharedMemoryTest, PagesOfWhichAShareHasAPartAreReserved) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const std::shared_ptr<Segment> segment = Segment::create(4 * page);
  if (madvise(segment->data(), page, MADV_POPULATE_WRITE) != 0 && errno == EINVAL) {
    GTEST_SKIP() << "Linux before 5.14";
  }
  std::array<unsigned char, 4> resident{};
  reserve_pages(segment->data() + page + page / 2, page);
  ASSERT_EQ(mincore(segment->data(), 4 * page, resident.data()), 0);
  EXPECT_EQ(resident, (std::array<unsigned char, 4>{1, 1, 1, 0}));
}

TEST(SharedMemoryTest, ATicketThatIsNoTicketIsAnError) {
  const SegmentTicket ticket = Segment::create(4096)->ticket();
  EXPECT_EQ(decode_ticket(encode(ticket)).inode, ticket.inode);
  for (const std::string text : {"", "x", "a b c d e f g h", "id 1 -5 1 3 1 1 1",
                                 "0123456789012345678901234567890123456789 1 5 1 3 1 1 1"}) {
    EXPECT_THROW(decode_ticket(text), CommError) << text;
  }
  // Its owner has closed the file.
  EXPECT_THROW(Segment::open(ticket), CommError);
  SegmentTicket elsewhere = ticket;
  elsewhere.owner.boot_id[0] ^= 1;
  EXPECT_ERROR(Segment::open(elsewhere), "another host");
}

}  // namespace
}  // namespace zerorun::testing
