// What a collective through NCCL costs the host beside NCCL: calls of CUDA, and memory that it
// allocates, once the first steps have made what is reused.

#include <new>

#include "tests/comm/nccl/nccl_test.h"

namespace zerorun::nccl_call_cost {

// Blocks of memory that this thread has asked for, other than within the fakes.
thread_local int64_t allocated = 0;

namespace {

using ::testing::Le;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr int kTimes = 160;

struct NcclCallCostTest : testing::NcclTest {
  struct Cost {
    std::map<std::string, double> calls;  // of each function, for one time
    double allocations = 0;               // for one time
  };

  // Of `work`, done kTimes by this thread.
  Cost cost_of(const std::function<void()>& work) {
    for (int i = 0; i < kTimes; ++i) work();
    const size_t first = fake_.calls().size();
    const int64_t before = allocated;
    for (int i = 0; i < kTimes; ++i) work();
    Cost cost{.calls = {}, .allocations = static_cast<double>(allocated - before) / kTimes};
    const std::vector<fake::Call> calls = fake_.calls();
    for (size_t i = first; i < calls.size(); ++i) {
      if (calls[i].thread == std::this_thread::get_id()) ++cost.calls[calls[i].name];
    }
    for (auto& [name, count] : cost.calls) count /= kTimes;
    return cost;
  }

  // One rank that communicates through NCCL all the same, on streams that do their work at once.
  void on_one_rank(const Body& body) {
    fake_.set_inline_streams(true);
    on_ranks(1, 60s, [&](Communicator& comm, CudaDevice& device) {
      const std::unique_ptr<Stream> stream = device.make_stream("inline");
      device.use_inline_stream(cuda_stream(*stream).handle());
      body(comm, device);
      device.use_inline_stream(nullptr);
    });
  }
};

// Beside the call: the two events, of which the second one is also what the caller gets; whether
// its memory is the device's; whether the call before is over; and each time, which device is
// current.
TEST_F(NcclCallCostTest, ACollectiveRecordsAnEventBeforeAndOneAfter) {
  on_one_rank([&](Communicator& comm, CudaDevice& device) {
    const Buffer memory = *comm.allocate(4096, Sharing::per_rank);
    const TensorView view = view_of(memory, DType::bf16, 2048);
    const Cost cost = cost_of(
        [&] { comm.all_gather(view, view, Sync::one_sided, device.inline_stream(), "bucket 7"); });
    EXPECT_THAT(cost.calls,
                UnorderedElementsAre(
                    Pair("cudaGetDevice", Le(4)), Pair("cudaPointerGetAttributes", 1),
                    Pair("cudaEventRecord", 2), Pair("cudaEventQuery", Le(1)),
                    Pair("cudaThreadExchangeStreamCaptureMode", Le(2)), Pair("ncclAllGather", 1)));
    EXPECT_LT(cost.allocations, 3.5);  // two events and the list of calls; no name
  });
}

// NCCL documents a limit for one group.
TEST_F(NcclCallCostTest, CollectivesOfAGroupShareTheEventsAndMoreThan2048AreSeveralGroups) {
  on_one_rank([&](Communicator& comm, CudaDevice& device) {
    const Buffer memory = *comm.allocate(4096, Sharing::per_rank);
    const TensorView view = view_of(memory, DType::bf16, 2048);
    Stream& stream = device.inline_stream();
    const auto gather = [&](int times) {
      comm.coalesced(stream, [&] {
        for (int i = 0; i < times; ++i) {
          comm.all_gather(view, view, Sync::one_sided, stream, "bucket 7");
        }
      });
    };
    const Cost cost = cost_of([&] { gather(8); });
    EXPECT_THAT(cost.calls,
                UnorderedElementsAre(
                    Pair("cudaGetDevice", Le(4)), Pair("cudaPointerGetAttributes", 8),
                    Pair("cudaEventRecord", 2), Pair("cudaEventQuery", Le(1)),
                    Pair("cudaThreadExchangeStreamCaptureMode", Le(2)), Pair("ncclGroupStart", 1),
                    Pair("ncclAllGather", 8), Pair("ncclGroupEnd", 1)));
    EXPECT_LT(cost.allocations, 12);  // lists, and no event or name of each
    auto before = fake_.counts();
    gather(2048 + 2);
    auto after = fake_.counts();
    EXPECT_EQ(after["ncclAllGather"] - before["ncclAllGather"], 2048 + 2);
    EXPECT_EQ(after["ncclGroupStart"] - before["ncclGroupStart"], 2);
  });
}

}  // namespace
}  // namespace zerorun::nccl_call_cost

// All that pair with one another: a sanitizer has others of its own. Inlined, they would look to
// the compiler like a free() of what `new` has made.
#define NOT_INLINE __attribute__((noinline))
NOT_INLINE void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  if (zerorun::fake::InFake::depth == 0) ++zerorun::nccl_call_cost::allocated;
  return std::malloc(bytes);
}
NOT_INLINE void* operator new(size_t bytes) {
  if (void* const data = operator new(bytes, std::nothrow)) return data;
  throw std::bad_alloc();
}
NOT_INLINE void operator delete(void* data) noexcept { std::free(data); }
NOT_INLINE void operator delete(void* data, size_t /*bytes*/) noexcept { std::free(data); }
NOT_INLINE void operator delete(void* data, const std::nothrow_t& /*tag*/) noexcept {
  std::free(data);
}
