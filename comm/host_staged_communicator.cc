#include "comm/host_staged_communicator.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "comm/host_communicator.h"
#include "comm/link_bound.h"
#include "core/check.h"
#include "device/drain.h"

namespace zerorun {

namespace {

// Options of the communicator below, whose calls have the labels of those above.
GroupOptions on_host(GroupOptions options) {
  options.device = nullptr;
  options.name += "/staged";
  options.group.clear();
  options.parent = nullptr;
  return options;
}

class HostStagedCommunicator final : public CallCommunicator, public LinkBound {
 public:
  explicit HostStagedCommunicator(const GroupOptions& options)
      : CallCommunicator(options),
        is_group_(!options.group.empty()),
        device_(options.device),
        host_(make_host_communicator(on_host(options))),
        worker_(make_worker_stream("zr-staged")) {}
  HostStagedCommunicator(const HostStagedCommunicator&) = delete;
  HostStagedCommunicator& operator=(const HostStagedCommunicator&) = delete;
  ~HostStagedCommunicator() override;

  int local_world_size() const override { return host_->local_world_size(); }
  std::string transport() const override { return "host-staged " + host_->transport(); }
  bool reads_peers() const override { return false; }
  void bound_link(DType dtype) override { zerorun::bound_link(*host_, dtype); }
  void abort(std::string_view reason) noexcept override { host_->abort(reason); }
  void look_at_peers(std::string_view what) override { host_->look_at_peers(what); }

  std::optional<Buffer> allocate(size_t nbytes, Sharing sharing) override {
    host_->allocate(0, Sharing::per_rank);  // throws the error of an aborted job
    if (sharing == Sharing::per_host) return std::nullopt;
    // Counted here as `other`, and by the caller as what it is: the ledger of ranks that share a
    // GPU says too much, never too little.
    Buffer block = device_->allocate(nbytes, MemoryCategory::other);
    Stream& stream = device_->inline_stream();
    device_->fill(stream, view_of(block, DType::uint8, static_cast<int64_t>(nbytes)), 0.0F);
    stream.synchronize();
    return block;
  }

 private:
  // Host memory of a call until its outputs are on the device. Pinned: from other memory a copy may
  // take what it finds when it is submitted.
  struct Staging {
    Buffer memory;
    Event free;
  };

  std::shared_ptr<Communicator> make_group(const GroupOptions& options) override {
    return std::make_shared<HostStagedCommunicator>(options);
  }
  Staging& stage(const CollectiveCall& call, size_t nbytes);
  void grow(const std::string& label, size_t nbytes);
  void submit(CollectiveCall call, Stream& stream) override;
  void run(CollectiveCall call, Stream& stream);
  void start_on_host(const CollectiveCall& call);

  const bool is_group_;
  const std::shared_ptr<Device> device_;
  std::shared_ptr<CallCommunicator> host_;
  std::array<Staging, 4> staging_;  // in turn: calls that are on their way at once
  size_t next_ = 0;
  std::unique_ptr<CpuStream> worker_;
};

void HostStagedCommunicator::start_on_host(const CollectiveCall& call) {
  switch (call.op) {
    case Collective::all_reduce:
      host_->all_reduce(call.in, call.out, call.reduce, call.output, *worker_, call.label);
      return;
    case Collective::reduce_scatter:
      host_->reduce_scatter(call.in, call.out, call.output, *worker_, call.label);
      return;
    case Collective::all_gather:
      host_->all_gather(call.in, call.out, Sync::collective, *worker_, call.label);
      return;
    case Collective::all_to_all:
      host_->all_to_all(call.in, call.out, *worker_, call.label);
      return;
    case Collective::broadcast:
      host_->broadcast(call.out, call.root, *worker_, call.label);
      return;
    case Collective::barrier:
      host_->barrier(*worker_, call.label);
      return;
  }
}

// The stream reads and writes the host's memory up to the last upload. Then this rank leaves before
// memory is unpinned: that may wait for the whole GPU, and so for peers that wait for this rank.
HostStagedCommunicator::~HostStagedCommunicator() {
  for (const Staging& staging : staging_) drain(staging.free);
  worker_.reset();
  host_.reset();
}

HostStagedCommunicator::Staging& HostStagedCommunicator::stage(const CollectiveCall& call,
                                                               size_t nbytes) {
  Staging& staging = staging_[next_];
  if (staging.memory.nbytes() < nbytes) grow(call.label, nbytes);
  next_ = (next_ + 1) % staging_.size();
  return staging;
}

// Pinning memory may wait for the whole GPU, whose streams wait for peers in a collective. So it is
// done while there is none: all ranks come here with the same call, and go on together.
void HostStagedCommunicator::grow(const std::string& label, size_t nbytes) {
  for (const Staging& staging : staging_) staging.free.synchronize();
  const std::string what = fmt::format("memory to stage '{}'", label);
  host_->barrier(*worker_, what).synchronize();
  for (Staging& staging : staging_) {
    staging.memory = {};
    staging.memory = device_->allocate_pinned(nbytes);
  }
  host_->barrier(*worker_, what).synchronize();
}

// In ordinary memory, while the caller waits. Pinning more would wait for the whole GPU, and so for
// calls of ranks outside of the group, which know nothing of it.
void HostStagedCommunicator::run(CollectiveCall call, Stream& stream) {
  std::vector<std::byte> in(call.in.nbytes());
  std::vector<std::byte> staged_out(call.out.nbytes());
  const TensorView out = call.out;
  device_->download(stream, call.in, in.data());
  device_->download(stream, call.out, staged_out.data());
  stream.synchronize();
  call.in.data = in.data();
  call.out.data = staged_out.data();
  start_on_host(call);
  worker_->record().synchronize();
  device_->upload(stream, staged_out.data(), out);
  stream.synchronize();
}

// The device's stream copies D2H, the worker takes part in the collective, the stream copies H2D:
// each waits for the other's event, the caller for none.
void HostStagedCommunicator::submit(CollectiveCall call, Stream& stream) {
  if (is_group_) return run(std::move(call), stream);
  constexpr size_t kAlignment = 64;
  const size_t in_nbytes = (call.in.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
  Staging& staging = stage(call, in_nbytes + call.out.nbytes());
  std::byte* const in = staging.memory.data();
  std::byte* const staged_out = in + in_nbytes;
  const TensorView out = call.out;
  const bool reads_out = call.output == Output::accumulate || call.op == Collective::broadcast;
  stream.wait(staging.free);
  device_->download(stream, call.in, in);
  if (reads_out) device_->download(stream, call.out, staged_out);
  worker_->wait(stream.record());
  call.in.data = in;
  call.out.data = staged_out;
  start_on_host(call);
  stream.wait(worker_->record());
  device_->upload(stream, staged_out, out);
  staging.free = stream.record();
}

}  // namespace

std::shared_ptr<Communicator> make_host_staged_communicator(const CommunicatorOptions& options) {
  ZR_CHECK(options.device != nullptr, "got no device to copy from");
  return std::make_shared<HostStagedCommunicator>(GroupOptions(options));
}

}  // namespace zerorun
