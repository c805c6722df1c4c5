// Rules for every communicator: one suite for all transports, world sizes, streams and kinds of
// memory. Results are compared bit for bit with a scalar reference that adds in the
// tree of zerorun/communicator.h.
// size: the rules of one interface
#include "tests/comm/conformance.h"

namespace zerorun::testing {
namespace {

Bytes part_of(const Bytes& whole, int rank, int world_size) {
  const auto part = static_cast<ptrdiff_t>(whole.size()) / world_size;
  return {whole.begin() + rank * part, whole.begin() + (rank + 1) * part};
}

struct Dtypes {
  DType in;
  DType out;
};
constexpr std::array<Dtypes, 8> kReducible = {{{DType::fp32, DType::fp32},
                                               {DType::bf16, DType::bf16},
                                               {DType::fp32, DType::fp16},
                                               {DType::bf16, DType::fp32},
                                               {DType::bf16, DType::fp16},
                                               {DType::fp16, DType::fp16},
                                               {DType::fp16, DType::fp32},
                                               {DType::int64, DType::int64}}};
// Nothing, one, a prime that is staged at once, and one that is staged in chunks or read in place.
constexpr std::array<int64_t, 4> kSizes = {0, 1, 4099, 70001};
constexpr std::array<int64_t, 4> kParts = {0, 1, 4099, 40009};  // times the world size

// How an input is cut depends on the size of its elements only: two sizes are enough.
bool is_large(int64_t numel) { return numel > 10000; }
bool cut_like_others(DType dtype) { return dtype == DType::fp16 || dtype == DType::int64; }

struct ConformanceTest : ::testing::TestWithParam<Setup> {
  void SetUp() override { GetParam().transport.enter(); }
  void TearDown() override { GetParam().transport.leave(); }

  void on_all_ranks(const std::function<void(Rank&)>& body) const {
    GetParam().transport.run(GetParam().world_size,
                             [&](Communicator& communicator, Device& device) {
                               Rank rank(communicator, device, GetParam());
                               body(rank);
                             });
  }
};

struct Reduction {
  DType in;
  DType out;
  int64_t numel;
  ReduceOp op = ReduceOp::sum;
  Output output = Output::overwrite;
  bool in_place = false;
};

void expect_all_reduce(Rank& rank, const Reduction& r) {
  const std::vector<Bytes>& inputs = rank.inputs_of_all(r.in, r.numel);
  const Bytes& mine = rank.input(r.in, r.numel);
  Bytes expected = r.in_place ? mine : random_values(r.out, r.numel, 77);
  const TensorView in = rank.make(mine, r.in);
  const TensorView out = r.in_place ? in : rank.make(expected, r.out);
  rank.reduce(inputs, r.in, r.op, r.output, r.out, expected);
  rank->all_reduce(in, out, r.op, r.output, rank.stream(), "sum").synchronize();
  rank.expect(expected, out, fmt::format("{} {} {}", r.numel, name_of(r.in), r.in_place));
  if (!r.in_place) rank.expect(mine, in, "input");
  rank.clear();
}

TEST_P(ConformanceTest, AllReduceAddsInAFixedTreeAndRoundsOnce) {
  on_all_ranks([](Rank& rank) {
    for (const auto& [in, out] : kReducible) {
      for (const int64_t numel : kSizes) {
        if (is_large(numel) && cut_like_others(in)) continue;
        for (const Output output : {Output::overwrite, Output::accumulate}) {
          expect_all_reduce(rank, {in, out, numel, ReduceOp::sum, output});
          if (in == out) expect_all_reduce(rank, {in, out, numel, ReduceOp::sum, output, true});
        }
      }
    }
    for (const auto& [dtype, op] :
         each(std::array{DType::fp32, DType::int64}, std::array{ReduceOp::max, ReduceOp::min})) {
      expect_all_reduce(rank, {dtype, dtype, 1021, op});
    }
  });
}

TEST_P(ConformanceTest, CollectivesMadeTogetherGiveWhatTheyGiveOneByOne) {
  on_all_ranks([](Rank& rank) {
    std::list<std::tuple<TensorView, Bytes>> sums;
    const Event done = rank->coalesced(rank.stream(), [&] {
      for (const auto& [in_dtype, out_dtype] : kReducible) {
        for (const int64_t numel : {int64_t{0}, int64_t{4099}}) {
          const std::vector<Bytes>& inputs = rank.inputs_of_all(in_dtype, numel);
          Bytes expected = random_values(out_dtype, numel, 77);
          const TensorView out = rank.make(expected, out_dtype);
          const TensorView in = rank.make(rank.input(in_dtype, numel), in_dtype);
          rank.reduce(inputs, in_dtype, ReduceOp::sum, Output::accumulate, out_dtype, expected);
          rank->all_reduce(in, out, ReduceOp::sum, Output::accumulate, rank.stream(),
                           "one of many");
          sums.emplace_back(out, std::move(expected));
        }
      }
    });
    done.synchronize();
    for (const auto& [out, expected] : sums) rank.expect(expected, out, "together");
  });
}

TEST_P(ConformanceTest, ReduceScatterGivesEachRankItsSlice) {
  on_all_ranks([](Rank& rank) {
    const auto check = [&](const Reduction& r) {
      const int64_t part = r.numel / rank.world_size();
      const std::vector<Bytes>& inputs = rank.inputs_of_all(r.in, r.numel);
      Bytes sum = random_values(r.out, r.numel, 77);
      const auto mine = [&] { return part_of(sum, rank.number(), rank.world_size()); };
      const TensorView in = rank.make(rank.input(r.in, r.numel), r.in);
      const TensorView out =
          r.in_place ? in.slice(rank.number() * part, part) : rank.make(mine(), r.out);
      rank.reduce(inputs, r.in, ReduceOp::sum, r.output, r.out, sum);
      rank->reduce_scatter(in, out, r.output, rank.stream(), "gradients").synchronize();
      rank.expect(mine(), out, fmt::format("{} {} {}", part, name_of(r.in), r.in_place));
      rank.clear();
    };
    for (const auto& [in, out] : kReducible) {
      for (const int64_t part : kParts) {
        if (is_large(part) && cut_like_others(in)) continue;
        const int64_t numel = part * rank.world_size();
        for (const Output output : {Output::overwrite, Output::accumulate}) {
          check({in, out, numel, ReduceOp::sum, output});
        }
        if (in == out) check({in, out, numel, ReduceOp::sum, Output::overwrite, true});
      }
    }
  });
}

TEST_P(ConformanceTest, AllGatherCollectsTheInputsInRankOrder) {
  on_all_ranks([](Rank& rank) {
    for (const auto& [dtype, part, in_place] :
         each(std::array{DType::uint8, DType::bf16, DType::fp32}, kParts, kEither)) {
      const Bytes whole = random_values(dtype, part * rank.world_size(), 3);
      const Bytes mine = part_of(whole, rank.number(), rank.world_size());
      const TensorView out = rank.make(Bytes(whole.size()), dtype);
      const TensorView in =
          in_place ? out.slice(rank.number() * part, part) : rank.make(mine, dtype);
      rank.write(in, mine);
      rank->all_gather(in, out, Sync::collective, rank.stream(), "parameters").synchronize();
      rank.expect(whole, out, fmt::format("{} {} {}", part, name_of(dtype), in_place));
      rank.clear();
    }
  });
}

TEST_P(ConformanceTest, AllToAllGivesEachRankItsSliceOfEveryInput) {
  on_all_ranks([](Rank& rank) {
    for (const auto& [dtype, part] : each(std::array{DType::uint8, DType::fp32}, kParts)) {
      const std::vector<Bytes>& inputs = rank.inputs_of_all(dtype, part * rank.world_size());
      Bytes expected;
      for (const Bytes& input : inputs) {
        const Bytes slice = part_of(input, rank.number(), rank.world_size());
        expected.insert(expected.end(), slice.begin(), slice.end());
      }
      const TensorView in = rank.make(inputs[static_cast<size_t>(rank.number())], dtype);
      const TensorView out = rank.make(Bytes(expected.size()), dtype);
      rank->all_to_all(in, out, rank.stream(), "gradients").synchronize();
      rank.expect(expected, out, fmt::format("{} {}", part, name_of(dtype)));
      rank.clear();
    }
  });
}

// `of(rank)`: the elements of its part, which begin at `begin`.
std::vector<int64_t> cuts_of(int64_t begin, int ranks, const std::function<int64_t(int)>& of) {
  std::vector<int64_t> cuts = {begin};
  for (int rank = 0; rank < ranks; ++rank) cuts.push_back(cuts.back() + of(rank));
  return cuts;
}

// A rank's part of `whole`, which begins where the cuts do.
Bytes cut_part(const Bytes& whole, const std::vector<int64_t>& cuts, int rank, DType dtype) {
  const auto at = [&](int i) {
    return whole.begin() +
           (cuts[static_cast<size_t>(i)] - cuts[0]) * static_cast<ptrdiff_t>(size_of(dtype));
  };
  return {at(rank), at(rank + 1)};
}

TEST_P(ConformanceTest, RedistributeGivesEachRankItsPartByTheOtherCuts) {
  on_all_ranks([](Rank& rank) {
    const int ranks = rank.world_size();
    using Parts = std::function<int64_t(int)>;
    for (const int64_t part : kParts) {
      const Parts even = [&](int) { return part; };
      const Parts one = [&](int i) { return i == ranks / 2 ? part * ranks : 0; };
      const Parts rising = [&](int i) {  // adds up to part * ranks
        return i == ranks - 1 ? part * ranks - i * (part / 2) : part / 2;
      };
      for (const auto& [from, to] : {std::pair(even, one), std::pair(one, even),
                                     std::pair(even, rising), std::pair(rising, one)}) {
        for (const DType dtype : {DType::uint8, DType::fp32}) {
          const auto cuts =
              std::make_shared<const Cuts>(Cuts{cuts_of(5, ranks, from), cuts_of(5, ranks, to)});
          const Bytes whole = random_values(dtype, part * ranks, 7);
          const auto mine = [&](const std::vector<int64_t>& by) {
            return cut_part(whole, by, rank.number(), dtype);
          };
          const TensorView in = rank.make(mine(cuts->before), dtype);
          const TensorView out = rank.make(Bytes(mine(cuts->after).size()), dtype);
          rank->redistribute(in, out, cuts, rank.stream(), "matrices").synchronize();
          rank.expect(mine(cuts->after), out, fmt::format("{} {}", part, name_of(dtype)));
          rank.clear();
        }
      }
    }
  });
}

// Inputs of different sizes at the end of the memory that each rank has.
TEST_P(ConformanceTest, RedistributeReadsNoMoreThanAnInputHas) {
  on_all_ranks([](Rank& rank) {
    const int ranks = rank.world_size();
    constexpr int64_t kPart = 40000;
    const auto cuts = std::make_shared<const Cuts>(
        Cuts{cuts_of(0, ranks, [](int i) { return (2 * i + 1) * kPart; }),
             cuts_of(0, ranks, [&](int) { return ranks * kPart; })});
    const int64_t numel = (2 * rank.number() + 1) * kPart;
    const int64_t most = (2 * ranks - 1) * kPart;
    const auto memory =
        rank->allocate(static_cast<size_t>(most) * sizeof(float), Sharing::per_rank);
    const Bytes whole = random_values(DType::fp32, ranks * ranks * kPart, 7);
    const auto part = [&](const std::vector<int64_t>& by) {
      return cut_part(whole, by, rank.number(), DType::fp32);
    };
    const TensorView in = view_of(*memory, DType::fp32, most).slice(most - numel, numel);
    rank.write(in, part(cuts->before));
    const TensorView out = rank.make(Bytes(part(cuts->after).size()), DType::fp32);
    rank->redistribute(in, out, cuts, rank.stream(), "matrices").synchronize();
    rank.expect(part(cuts->after), out, "at the end");
  });
}

TEST_P(ConformanceTest, BroadcastCopiesFromEachRoot) {
  on_all_ranks([](Rank& rank) {
    for (const auto& [numel, root] : each(kSizes, std::views::iota(0, rank.world_size()))) {
      const Bytes expected = random_values(DType::fp32, numel, static_cast<unsigned>(root));
      const bool gives = rank.number() == root;
      const TensorView inout = rank.make(gives ? expected : Bytes(expected.size()), DType::fp32);
      rank->broadcast(inout, root, rank.stream(), "initial parameters").synchronize();
      rank.expect(expected, inout, fmt::format("{} from {}", numel, root));
      rank.clear();
    }
  });
}

TEST_P(ConformanceTest, InputsMayBeOverwrittenOnceTheEventHasHappened) {
  on_all_ranks([](Rank& rank) {
    constexpr int64_t kPart = 40009;
    const auto all = [](int64_t numel, int64_t value) {
      const std::vector<int64_t> values(static_cast<size_t>(numel), value);
      const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
      return Bytes(bytes, bytes + values.size() * sizeof(int64_t));
    };
    const int64_t numel = kPart * rank.world_size();
    const TensorView in = rank.make(all(numel, 0), DType::int64);
    const TensorView part = rank.make(all(kPart, 0), DType::int64);
    for (int64_t round = 0; round < 20; ++round) {
      rank.write(in, all(numel, round));
      rank->reduce_scatter(in, part, Output::overwrite, rank.stream(), "").synchronize();
      rank.expect(all(kPart, round * rank.world_size()), part, fmt::format("round {}", round));
    }
  });
}

TEST_P(ConformanceTest, BarrierOrdersWritesBeforeReads) {
  on_all_ranks([](Rank& rank) {
    const std::optional<Buffer> shared = rank->allocate(1024, Sharing::per_host);
    ASSERT_EQ(shared.has_value(), rank.transport().has_host_memory);
    if (!shared) return;
    const TensorView counts = view_of(*shared, DType::int64, 128);
    for (int64_t round = 1; round <= 50; ++round) {
      counts.as<int64_t>()[rank.number()] = round;
      rank->barrier(rank.stream(), "written").synchronize();
      for (int peer = 0; peer < rank.world_size(); ++peer) {
        ASSERT_EQ(counts.as<int64_t>()[peer], round);
      }
      rank->barrier(rank.stream(), "read").synchronize();
    }
  });
}

TEST_P(ConformanceTest, AllocatedMemoryIsZeroAndAligned) {
  on_all_ranks([](Rank& rank) {
    for (const auto& [sharing, nbytes] :
         each(std::array{Sharing::per_rank, Sharing::per_host},
              std::array{size_t{0}, size_t{1}, size_t{100000}, size_t{3} << 20})) {
      const std::optional<Buffer> buffer = rank->allocate(nbytes, sharing);
      if (sharing == Sharing::per_host && !rank.transport().has_host_memory) {
        EXPECT_FALSE(buffer.has_value());
        continue;
      }
      ASSERT_TRUE(buffer.has_value());
      EXPECT_EQ(buffer->nbytes(), nbytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0U);
      const auto bytes = view_of(*buffer, DType::uint8, static_cast<int64_t>(nbytes));
      const Bytes values = rank.read(bytes);
      EXPECT_TRUE(values == Bytes(nbytes)) << nbytes;
      rank->barrier(rank.stream(), "read").synchronize();
      if (sharing == Sharing::per_rank) rank.write(bytes, Bytes(nbytes, std::byte{1}));
    }
  });
}

TEST_P(ConformanceTest, CountsCallsElementsAndBytesOfTheFullTensor) {
  on_all_ranks([](Rank& rank) {
    const int ranks = rank.world_size();
    const auto make = [&](int64_t numel, DType dtype) {
      return rank.make(Bytes(static_cast<size_t>(numel) * size_of(dtype)), dtype);
    };
    rank->all_reduce(make(10, DType::fp32), make(10, DType::fp32), ReduceOp::sum, Output::overwrite,
                     rank.stream(), "");
    rank->reduce_scatter(make(6 * ranks, DType::bf16), make(6, DType::fp32), Output::overwrite,
                         rank.stream(), "");
    rank->all_gather(make(5, DType::bf16), make(5 * ranks, DType::bf16), Sync::collective,
                     rank.stream(), "");
    rank->all_to_all(make(2 * ranks, DType::uint8), make(2 * ranks, DType::uint8), rank.stream(),
                     "");
    const auto cuts = std::make_shared<const Cuts>(
        Cuts{cuts_of(0, ranks, [](int) { return 3; }), cuts_of(0, ranks, [](int) { return 3; })});
    rank->redistribute(make(3, DType::fp32), make(3, DType::fp32), cuts, rank.stream(), "");
    rank->broadcast(make(3, DType::uint8), 0, rank.stream(), "");
    rank->barrier(rank.stream(), "");
    rank->barrier(rank.stream(), "").synchronize();
    const CommStats stats = rank->stats();
    const auto expect = [&](Collective op, int64_t calls, int64_t elements, int64_t bytes) {
      EXPECT_EQ(std::tuple(stats[op].calls, stats[op].elements, stats[op].bytes),
                std::tuple(calls, elements, bytes))
          << name_of(op);
    };
    expect(Collective::all_reduce, 1, 10, 40);
    expect(Collective::reduce_scatter, 1, 6 * ranks, 12 * ranks);
    expect(Collective::all_gather, 1, 5 * ranks, 10 * ranks);
    expect(Collective::all_to_all, 2, 2 * ranks + 3, 2 * ranks + 12);
    expect(Collective::broadcast, 1, 3, 3);
    expect(Collective::barrier, 2, 0, 0);
  });
}

TEST_P(ConformanceTest, RefusesCallsThatCannotBeMeant) {
  on_all_ranks([](Rank& rank) {
    const TensorView floats = rank.make(Bytes(400), DType::fp32);
    const TensorView bytes = rank.make(Bytes(100), DType::uint8);
    const TensorView fewer = floats.slice(0, 99);
    const auto refuses = [](const auto& call) { EXPECT_THROW(call(), InternalError); };
    const auto refuses_sum = [&](TensorView in, TensorView out) {
      refuses(
          [&] { rank->all_reduce(in, out, ReduceOp::sum, Output::overwrite, rank.stream(), ""); });
    };
    refuses_sum(floats, fewer);
    refuses_sum(bytes, bytes);
    refuses_sum(fewer, floats.slice(1, 99));  // overlaps, but is not the same view
    refuses(
        [&] { rank->all_gather(floats, floats.slice(0, 1), Sync::collective, rank.stream(), ""); });
    refuses([&] { rank->all_to_all(floats, floats, rank.stream(), ""); });
    refuses([&] { rank->all_to_all(floats, bytes, rank.stream(), ""); });
    const auto refuses_cuts = [&](std::vector<int64_t> before, std::vector<int64_t> after) {
      const auto cuts = std::make_shared<const Cuts>(Cuts{std::move(before), std::move(after)});
      refuses([&] {
        rank->redistribute(floats.slice(0, 4), floats.slice(4, 4), cuts, rank.stream(), "");
      });
    };
    const auto four = cuts_of(0, rank.world_size(), [](int) { return 4; });
    refuses_cuts({}, {});
    refuses_cuts(four, {0, four.back() + 4});
    refuses_cuts(four, cuts_of(1, rank.world_size(), [](int) { return 4; }));  // other ends
    refuses_cuts(cuts_of(0, rank.world_size(), [](int) { return 5; }),
                 cuts_of(0, rank.world_size(), [](int) { return 5; }));  // another size
    if (const int ranks = rank.world_size(); ranks > 1) {  // another size of the input alone
      refuses_cuts(cuts_of(0, ranks, [&](int i) { return i == 0 ? 4 * ranks : 0; }), four);
    }
    refuses([&] { rank->redistribute(floats, fewer, nullptr, rank.stream(), ""); });
    refuses([&] { rank->broadcast(floats, rank.world_size(), rank.stream(), ""); });
    refuses([&] { rank->broadcast({nullptr, 5, DType::fp32}, 0, rank.stream(), ""); });
    rank->barrier(rank.stream(), "no harm done").synchronize();
  });
}

TEST_P(ConformanceTest, AbortIsTheErrorOfEveryLaterCall) {
  std::latch passed(GetParam().world_size);
  on_all_ranks([&](Rank& rank) {
    rank->barrier(rank.stream(), "").synchronize();
    passed.arrive_and_wait();
    if (rank.number() == 0) rank->abort("loss is not finite");
    for (int call = 0; call < 2; ++call) {
      EXPECT_ERROR_OF(CommError, rank->barrier(rank.stream(), "after").synchronize(), "rank 0",
                      "loss is not finite");
    }
    EXPECT_THROW(rank->allocate(8, Sharing::per_rank), CommError);
  });
}

// Each number of ranks, and each kind of stream with each kind of memory: how ranks wait for each
// other does not depend on where their data is.
std::vector<Setup> setups() {
  constexpr StreamKind kInline = StreamKind::inline_stream;
  constexpr StreamKind kWorker = StreamKind::worker;
  std::vector<Setup> setups;
  for (const TransportUnderTest& transport : transports_under_test()) {
    for (const auto& [ranks, stream, memory] :
         std::to_array<std::tuple<int, StreamKind, Memory>>({{1, kInline, Memory::own},
                                                             {2, kInline, Memory::shared},
                                                             {2, kWorker, Memory::own},
                                                             {3, kInline, Memory::own},
                                                             {4, kWorker, Memory::shared}})) {
      if (ranks < transport.least_ranks) continue;
      if (ranks <= transport.most_ranks) setups.push_back({transport, ranks, stream, memory});
    }
  }
  return setups;
}
INSTANTIATE_TEST_SUITE_P(Transports, ConformanceTest, ::testing::ValuesIn(setups()), name_of_setup);

}  // namespace
}  // namespace zerorun::testing
