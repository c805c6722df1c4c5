#pragma once

#include <ostream>

#include "tests/comm/reference.h"
#include "tests/harness.h"

namespace zerorun::testing {

// A transport that the conformance suite (tests/comm/conformance_test.cc) runs on.
struct TransportUnderTest {
  using Body = std::function<void(Communicator&, Device&)>;

  std::string name;
  // Runs `body` on `world_size` ranks that are threads, each with a device, and joins them.
  // Rethrows the error of the lowest failing rank.
  std::function<void(int world_size, const Body& body)> run;
  int least_ranks = 1;
  int most_ranks = 1024;
  bool has_host_memory = true;          // Sharing::per_host
  bool rounds_to_inputs = false;        // sums of 16-bit inputs are rounded to 16 bits
  std::function<void()> enter = [] {};  // before each test
  std::function<void()> leave = [] {};  // after it
};

// Groups of every other rank, of twice as many. They are collectives as those of a world are, and
// differ in how they are set up: one size is enough.
inline TransportUnderTest every_other_rank_of(const TransportUnderTest& all) {
  TransportUnderTest group = all;
  group.name = "group_of_" + all.name;
  group.least_ranks = group.most_ranks = 3;
  group.run = [run = all.run](int world_size, const TransportUnderTest::Body& body) {
    std::latch over(2 * world_size);
    struct Leave {
      std::latch& over;
      ~Leave() { over.arrive_and_wait(); }
    };
    run(2 * world_size, [&](Communicator& communicator, Device& device) {
      const Leave together{over};
      const int color = communicator.rank() % 2 == 0 ? 7 : -1;
      const auto members = communicator.split(color, communicator.rank(), "even ranks");
      EXPECT_EQ(members == nullptr, color < 0);
      if (members) body(*members, device);
    });
  };
  return group;
}

// Between a GPU for each rank, or one that all share. One rank with a store has NCCL, too.
struct GpuRanks {
  std::function<std::shared_ptr<Device>(int gpu)> make_device;
  std::function<std::shared_ptr<Communicator>(const CommunicatorOptions&)> make;
  bool shared = false;
  bool alone = false;  // without a store
  std::chrono::milliseconds timeout = 30s;
};
inline TransportUnderTest on_gpus(std::string name, const GpuRanks& ranks) {
  const auto run = [ranks](int world_size, const TransportUnderTest::Body& body) {
    const auto store = ranks.alone ? nullptr : make_memory_store();
    run_threads(world_size, [&](int rank) {
      CommunicatorOptions options = options_of_rank(rank, world_size, store, ranks.timeout);
      options.device = ranks.make_device(ranks.shared ? 0 : rank);
      const auto communicator = ranks.make(options);
      body(*communicator, *options.device);
    });
  };
  return {.name = std::move(name),
          .run = run,
          .most_ranks = ranks.alone ? 1 : 1024,
          .has_host_memory = false,
          .rounds_to_inputs = !ranks.shared && !ranks.alone};
}

// The transports of the program that the suite is linked into.
std::vector<TransportUnderTest> transports_under_test();

enum class StreamKind { inline_stream, worker };
// The place of views: the caller's own memory, or memory that peers can address.
enum class Memory { own, shared };

struct Setup {
  TransportUnderTest transport;
  int world_size;
  StreamKind stream;
  Memory memory;
};

inline std::string name_of(const Setup& setup) {
  return fmt::format("{}_{}_ranks_{}_{}", setup.transport.name, setup.world_size,
                     setup.stream == StreamKind::worker ? "worker" : "inline",
                     setup.memory == Memory::shared ? "shared" : "own");
}
inline std::string name_of_setup(const ::testing::TestParamInfo<Setup>& info) {
  return name_of(info.param);
}
// Else GoogleTest prints the bytes.
inline void PrintTo(const Setup& setup, std::ostream* out) { *out << name_of(setup); }

// One rank under test: its stream and its memory.
class Rank {
 public:
  Rank(Communicator& communicator, Device& device, const Setup& setup)
      : communicator_(communicator), device_(device), setup_(setup) {
    if (setup.stream == StreamKind::worker) stream_ = device.make_stream("test");
  }

  Communicator& operator*() const { return communicator_; }
  Communicator* operator->() const { return &communicator_; }
  Stream& stream() const { return stream_ ? *stream_ : device_.inline_stream(); }
  int number() const { return communicator_.rank(); }
  int world_size() const { return communicator_.world_size(); }
  const TransportUnderTest& transport() const { return setup_.transport; }

  // Memory with these values; valid until the next clear().
  TensorView make(const Bytes& values, DType dtype) {
    TensorView view{nullptr, static_cast<int64_t>(values.size() / size_of(dtype)), dtype};
    if (setup_.memory == Memory::shared) {
      constexpr size_t kArenaBytes = size_t{4} << 20;
      if (!arena_) arena_ = *communicator_.allocate(kArenaBytes, Sharing::per_rank);
      view.data = arena_.data() + used_;
      used_ += (values.size() + 63) / 64 * 64;
      ZR_CHECK(used_ <= kArenaBytes, "the test needs a larger arena");
    } else {
      buffers_.push_back(device_.allocate(values.size(), MemoryCategory::other));
      view.data = buffers_.back().data();
    }
    write(view, values);
    return view;
  }
  // Of a collective: random, the same on all ranks and each time.
  const std::vector<Bytes>& inputs_of_all(DType dtype, int64_t numel) {
    std::vector<Bytes>& inputs = inputs_[{dtype, numel}];
    for (auto peer = static_cast<int>(inputs.size()); peer < world_size(); ++peer) {
      inputs.push_back(random_values(dtype, numel, static_cast<unsigned>(peer)));
    }
    return inputs;
  }
  // This rank's.
  const Bytes& input(DType dtype, int64_t numel) {
    return inputs_of_all(dtype, numel)[static_cast<size_t>(number())];
  }
  void clear() {
    used_ = 0;
    buffers_.clear();
  }

  void write(TensorView view, const Bytes& values) const {
    device_.upload(device_.inline_stream(), values.data(), view);
    device_.inline_stream().synchronize();
  }
  Bytes read(TensorView view) const {
    Bytes values(view.nbytes());
    device_.download(device_.inline_stream(), view, values.data());
    device_.inline_stream().synchronize();
    return values;
  }
  void expect(const Bytes& expected, TensorView got, const std::string& what) const {
    Bytes values = read(got);
    expect_same(expected, testing::view(values, got.dtype), what);
  }
  // The bits that this transport makes of `out`.
  void reduce(const std::vector<Bytes>& inputs, DType dtype, ReduceOp op, Output output,
              DType out_dtype, Bytes& out) const {
    if (!transport().rounds_to_inputs || size_of(dtype) != 2) {
      return reference_reduce(inputs, dtype, op, output, out_dtype, out);
    }
    Bytes sum(inputs.front().size());
    reference_reduce(inputs, dtype, op, Output::overwrite, dtype, sum);
    reference_reduce({sum}, dtype, op, output, out_dtype, out);
  }

 private:
  Communicator& communicator_;
  Device& device_;
  const Setup& setup_;
  Buffer arena_;
  size_t used_ = 0;
  std::list<Buffer> buffers_;
  std::map<std::pair<DType, int64_t>, std::vector<Bytes>> inputs_;
  std::unique_ptr<Stream> stream_;  // null: the inline one
};

}  // namespace zerorun::testing
