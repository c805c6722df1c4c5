#include "comm/nccl/communicator.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "comm/group_communicator.h"
#include "comm/nccl/call.h"
#include "comm/nccl/group.h"
#include "comm/nccl/library.h"
#include "core/check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/profiler_range.h"
#include "device/cuda/runtime/current_device.h"
#include "device/drain.h"

namespace zerorun {

namespace {

// NCCL 2.26 brought NCCL_LAUNCH_ORDER_IMPLICIT. Before, kernels of two communicators that overlap
// on a GPU may wait for each other, so each waits for the end of the one before.
constexpr int kHasLaunchOrder = 22600;

// As many as NCCL's documentation allows in one group.
constexpr size_t kMaxOfGroup = 2048;

// The scratch of one of several calls: the next one's is aligned as memory of its own would be.
size_t scratch_part(const CollectiveCall& call) {
  constexpr size_t kAlignment = 256;
  return (NcclCall::scratch_nbytes(call) + kAlignment - 1) / kAlignment * kAlignment;
}

// Temporary memory for sums by NCCL that are then cast or accumulated. It is one block, allocated
// at first use, as large as the largest operation needs, and reused by later operations on any
// stream.
class NcclScratch {
 public:
  explicit NcclScratch(CudaDevice& device) : device_(device) {}
  ~NcclScratch() { drain(free_); }

  // Returns at least `nbytes` bytes for work that is submitted to `stream` before release().
  std::byte* acquire(CudaStream& stream, size_t nbytes);
  // `done`: with that work.
  void release(Event done) { free_ = std::move(done); }

 private:
  CudaDevice& device_;
  Buffer block_;
  Event free_;  // the last work that used the block has completed
};

std::byte* NcclScratch::acquire(CudaStream& stream, size_t nbytes) {
  if (block_.nbytes() < nbytes) {
    free_.synchronize();
    block_ = {};  // before the larger one: there need not be room for both
    block_ = device_.allocate(nbytes, MemoryCategory::buckets);
  } else {
    stream.wait(free_);
  }
  return static_cast<std::byte*>(block_.data());
}

// The streams of a job of one rank, which has no group, fail after abort().
class AbortedStreams final : public CudaStream::Watched {
 public:
  explicit AbortedStreams(std::shared_ptr<JobState> job) : job_(std::move(job)) {}
  void check() const override { job_->check(); }

 private:
  const std::shared_ptr<JobState> job_;
};

// One rank by itself needs no NCCL.
bool has_group(const GroupOptions& options) { return options.world_size > 1 || options.store; }

// What all communicators of a rank share.
struct SharedByGroups {
  const std::shared_ptr<AskingThread> asking = AskingThread::make();
  Event last_call{};  // of any of them
};

class NcclTransport final : public Transport {
 public:
  // `shared`: null for a job of one rank without a group.
  NcclTransport(const GroupOptions& options, std::shared_ptr<CudaDevice> device,
                std::shared_ptr<SharedByGroups> shared)
      : number_(options.own_number()),
        rank_(options.rank),
        world_size_(options.world_size),
        job_(options.job),
        device_(std::move(device)),
        shared_(std::move(shared)),
        scratch_(*device_) {
    if (has_group(options)) {
      group_ = std::make_shared<NcclGroup>(options, device_->index(), shared_->asking);
      // Within a process NCCL lets a GPU read its peers' memory where it lies.
      for (const int peer : group_->devices_of_this_process()) device_->share_memory_with(peer);
      is_serial_ = group_->version() < kHasLaunchOrder;
      watched_ = group_;
    } else {
      watched_ = std::make_shared<AbortedStreams>(job_);
    }
    // After joining: peers learn of an error.
    word_ = device_->allocate(sizeof(int64_t), MemoryCategory::other);
  }

  TransportTraits traits() const override {
    return {.name = group_ ? "nccl" : "self",
            .local_world_size = group_ ? group_->ranks_of_this_host() : 1,
            .overlaps = true};
  }
  Event start(std::span<CollectiveCall> calls, Stream& stream) override;
  std::optional<Buffer> allocate(size_t nbytes, Sharing sharing) override;
  std::shared_ptr<Transport> make_group(GroupOptions& options) override {
    return std::make_shared<NcclTransport>(options, device_, shared_);
  }
  void check_peers(std::string_view what) override {
    if (group_) group_->check_peers(what);
  }
  void abort(std::string_view reason) noexcept override { job_->abort(number_, reason); }
  void set_error(std::string_view error) noexcept override {
    if (group_) group_->set_error(error);
  }
  std::string error() override { return group_ ? group_->error() : ""; }

 private:
  // Starts the calls as one operation.
  void start_group(std::span<CollectiveCall> calls, Stream& stream);
  void run(std::vector<NcclCall>& calls, CudaStream& stream);
  Buffer allocate_block(size_t nbytes);
  // True when `mine` is true on every rank.
  bool agree(bool mine);

  const int number_;  // of this rank in the job
  const int rank_;
  const int world_size_;
  const std::shared_ptr<JobState> job_;
  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<SharedByGroups> shared_;
  Buffer word_;  // a barrier reduces it
  NcclScratch scratch_;
  std::shared_ptr<NcclGroup> group_;  // null for one rank by itself
  bool is_serial_ = false;            // each call waits for the last one of all communicators
  std::shared_ptr<CudaStream::Watched> watched_;
  // Calls of one communicator happen in one order on all ranks, whatever their streams.
  const Stream* last_stream_ = nullptr;
  Event last_call_;
  Event done_;  // with what follows the last call
};

std::optional<Buffer> NcclTransport::allocate(size_t nbytes, Sharing sharing) {
  watched_->check();
  if (sharing == Sharing::per_host) return std::nullopt;
  Buffer block = allocate_block(nbytes);
  device_->fill(device_->inline_stream(),
                view_of(block, DType::uint8, static_cast<int64_t>(nbytes)), 0.0F);
  device_->inline_stream().synchronize();
  return block;
}

// Not in the device's ledger: the caller accounts for it, as for all memory of communicators.
//
// Registered on every rank or on none: NCCL may not be given a mixture.
Buffer NcclTransport::allocate_block(size_t nbytes) {
  if (group_ && nbytes > 0) {
    Buffer registered;
    if (nbytes <= device_->room()) {
      device_->make_room_within_limit(nbytes);
      registered = group_->allocate(nbytes, group_);
      if (!registered && device_->release_kept()) registered = group_->allocate(nbytes, group_);
    }
    if (agree(static_cast<bool>(registered))) return registered;
  }
  return device_->allocate_uncounted({nbytes, MemoryCategory::other, "communication"});
}

bool NcclTransport::agree(bool mine) {
  Stream& stream = device_->inline_stream();
  int64_t word = mine ? 1 : 0;
  CollectiveCall call{.op = Collective::all_reduce, .label = "memory is registered"};
  call.in = call.out = view_of(std::span(&word, 1));
  call.reduce = ReduceOp::min;
  start(std::span(&call, 1), stream);
  stream.synchronize();
  return word == 1;
}

Event NcclTransport::start(std::span<CollectiveCall> calls, Stream& stream) {
  for (size_t i = 0; i < calls.size(); i += kMaxOfGroup) {
    start_group(calls.subspan(i, std::min(kMaxOfGroup, calls.size() - i)), stream);
  }
  return done_;
}

void NcclTransport::start_group(std::span<CollectiveCall> calls, Stream& stream) {
  CudaStream& cuda = cuda_stream(stream);
  watched_->check();
  cuda.watch(watched_);
  const CurrentDevice current(device_->index());
  const ProfilerRange range(calls.front().label.c_str());
  if (group_ && last_stream_ != &stream) stream.wait(last_call_);
  if (is_serial_) stream.wait(shared_->last_call);
  size_t scratch_nbytes = 0;
  for (const CollectiveCall& call : calls) scratch_nbytes += scratch_part(call);
  std::byte* scratch = scratch_nbytes > 0 ? scratch_.acquire(cuda, scratch_nbytes) : nullptr;
  std::vector<NcclCall> started;
  started.reserve(calls.size());
  for (CollectiveCall& call : calls) {
    const size_t part = scratch_part(call);
    started.emplace_back(*device_, cuda, std::move(call), view_of(word_, DType::int64, 1), scratch);
    scratch += part;
    if (started.back().empty()) started.pop_back();
  }
  if (!started.empty()) run(started, cuda);
  bool is_more = !group_ || started.empty();
  for (const NcclCall& call : started) is_more = call.finish() || is_more;
  done_ = is_more ? stream.record() : last_call_;
  if (scratch_nbytes > 0) scratch_.release(done_);
  if (!group_) return;
  last_stream_ = &stream;
  shared_->last_call = last_call_;
}

void NcclTransport::run(std::vector<NcclCall>& calls, CudaStream& stream) {
  if (!group_) {
    for (const NcclCall& call : calls) call.copy();
    return;
  }
  CallName name = calls.front().take_name();
  name.more = calls.size() - 1;
  last_call_ =
      group_->run(std::move(name), stream, [&](const NcclFunctions& nccl, ncclComm_t comm) {
        if (calls.size() == 1) return calls.front().enqueue(nccl, comm, rank_, world_size_);
        ncclResult_t result = nccl.group_start();
        if (result != ncclSuccess) return result;
        for (const NcclCall& call : calls) {
          if (result == ncclSuccess || result == ncclInProgress) {
            result = call.enqueue(nccl, comm, rank_, world_size_);
          }
        }
        const ncclResult_t ended = nccl.group_end();  // also after an error
        return result == ncclSuccess || result == ncclInProgress ? ended : result;
      });
}

}  // namespace

std::shared_ptr<Communicator> make_nccl_communicator(const CommunicatorOptions& options) {
  auto device = std::dynamic_pointer_cast<CudaDevice>(options.device);
  ZR_CHECK(device != nullptr, "NCCL needs a CUDA device");
  const GroupOptions group(options);
  auto shared = has_group(group) ? std::make_shared<SharedByGroups>() : nullptr;
  return std::make_shared<GroupCommunicator>(
      group, std::make_shared<NcclTransport>(group, std::move(device), std::move(shared)));
}

extern "C" __attribute__((visibility("default"))) const NcclBackend* zerorun_nccl_backend() {
  static const NcclBackend backend = {build_id(), make_nccl_communicator, describe_nccl};
  return &backend;
}

}  // namespace zerorun
