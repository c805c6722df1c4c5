#include "comm/device_communicator.h"

#include <array>
#include <utility>
#include <vector>

#include "comm/group_communicator.h"
#include "comm/host_transport.h"
#include "comm/nccl/communicator.h"
#include "comm/waiting.h"
#include "config/env.h"
#include "core/check.h"
#include "device/cpu/cpu_stream.h"
#include "device/cuda_backend.h"
#include "device/drain.h"
#include "device/plugin.h"
#include "os/process_identity.h"

namespace zerorun {

namespace {

// Gathers and reductions have communicators of their own, and PyTorch has more. Two that overlap,
// in another order on another rank, could wait for each other. NCCL reads the variable when it
// launches its first collective.
const NcclBackend& open_nccl_backend() {
  default_environment("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  return plugin_entry<NcclBackend>(open_plugin(kCudaLibrary), kNcclBackendEntry);
}

constexpr const char* kNone = "none";

// Tells all ranks alike which two of them NCCL would refuse (shared_gpu()), or kNone: rank 0 looks.
// If there are two, rank 0 returns after all have read it: it then fails, and its store with it.
std::string find_shared_gpu(const GroupOptions& options, const std::string& mine) {
  const auto seen = [&](int rank) { return fmt::format("{}/device/seen/{}", options.name, rank); };
  std::string found = kNone;
  std::vector<std::string> gpus;
  const auto take = [&](const std::string& gpu) {
    gpus.push_back(gpu);
    const std::optional<std::string> shared = shared_gpu(gpus);
    if (shared) found = *shared;
    return !shared;
  };
  answer_all(options, options.name + "/device", mine, "to come with a GPU", found, take);
  if (options.rank > 0 && found != kNone) options.store->set(seen(options.rank), "");
  for (int rank = 1; options.rank == 0 && found != kNone && rank < options.world_size; ++rank) {
    wait_for_key(options, seen(rank), [&] {
      return fmt::format("rank {} to come, or to read which GPUs are shared", rank);
    });
  }
  return found;
}

std::shared_ptr<Transport> make_transport_below(GroupOptions options) {
  options.name += "/staged";
  return make_host_transport(options);
}

class HostStagedTransport final : public Transport {
 public:
  // The worker is there before the ranks meet: if it cannot be made, no peer waits for this rank.
  explicit HostStagedTransport(const GroupOptions& options,
                               std::unique_ptr<CpuStream> worker = make_worker_stream("zr-staged"))
      : is_group_(!options.group.empty()),
        device_(options.device),
        host_(make_transport_below(options)),
        worker_(std::move(worker)) {}

  TransportTraits traits() const override {
    const TransportTraits host = host_->traits();
    return {.name = "host-staged " + host.name, .local_world_size = host.local_world_size};
  }
  Event start(std::span<CollectiveCall> calls, Stream& stream) override {
    for (CollectiveCall& call : calls) {
      if (is_group_) {
        run(std::move(call), stream);
      } else {
        enqueue(std::move(call), stream);
      }
    }
    return stream.record();
  }
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
  std::shared_ptr<Transport> make_group(GroupOptions& options) override {
    return std::make_shared<HostStagedTransport>(options);
  }
  void bound_link(DType dtype) override { host_->bound_link(dtype); }
  void check_peers(std::string_view what) override { host_->check_peers(what); }
  void abort(std::string_view reason) noexcept override { host_->abort(reason); }
  void set_error(std::string_view error) noexcept override { host_->set_error(error); }
  std::string error() override { return host_->error(); }
  void leave() noexcept override;

 private:
  // Host memory of a call until its outputs are on the device. Pinned: from other memory a copy may
  // take what it finds when it is submitted.
  struct Staging {
    Buffer memory;
    Event free;
  };

  Staging& stage(const CollectiveCall& call, size_t nbytes);
  void grow(const std::string& label, size_t nbytes);
  void enqueue(CollectiveCall call, Stream& stream);
  void run(CollectiveCall call, Stream& stream);
  // Starts the call with its inputs and outputs in host memory.
  void start_on_host(CollectiveCall call, std::byte* in, std::byte* out);

  const bool is_group_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Transport> host_;
  std::array<Staging, 4> staging_;  // in turn: calls that are on their way at once
  size_t next_ = 0;
  std::unique_ptr<CpuStream> worker_;
};

void HostStagedTransport::start_on_host(CollectiveCall call, std::byte* in, std::byte* out) {
  call.in.data = call.op == Collective::broadcast ? out : in;
  call.out.data = out;
  call.sync = Sync::collective;
  host_->start(std::span(&call, 1), *worker_);
}

// The stream reads and writes the host's memory up to the last upload. Then this rank leaves before
// memory is unpinned: that may wait for the whole GPU, and so for peers that wait for this rank.
void HostStagedTransport::leave() noexcept {
  for (const Staging& staging : staging_) drain(staging.free);
  worker_.reset();
  host_->leave();
}

HostStagedTransport::Staging& HostStagedTransport::stage(const CollectiveCall& call,
                                                         size_t nbytes) {
  Staging& staging = staging_[next_];
  if (staging.memory.nbytes() < nbytes) grow(call.label, nbytes);
  next_ = (next_ + 1) % staging_.size();
  return staging;
}

// Pinning memory may wait for the whole GPU, whose streams wait for peers in a collective. So it is
// done while there is none: all ranks come here with the same call, and go on together.
void HostStagedTransport::grow(const std::string& label, size_t nbytes) {
  for (const Staging& staging : staging_) staging.free.synchronize();
  const auto meet = [&] {
    CollectiveCall barrier;
    barrier.label = fmt::format("memory to stage '{}'", label);
    host_->start(std::span(&barrier, 1), *worker_).synchronize();
  };
  meet();
  for (Staging& staging : staging_) {
    staging.memory = {};
    staging.memory = device_->allocate_pinned(nbytes);
  }
  meet();
}

// In ordinary memory, while the caller waits. Pinning more would wait for the whole GPU, and so for
// calls of ranks outside of the group, which know nothing of it.
void HostStagedTransport::run(CollectiveCall call, Stream& stream) {
  std::vector<std::byte> in(call.in.nbytes());
  std::vector<std::byte> staged_out(call.out.nbytes());
  const TensorView out = call.out;
  device_->download(stream, call.in, in.data());
  device_->download(stream, call.out, staged_out.data());
  stream.synchronize();
  start_on_host(std::move(call), in.data(), staged_out.data());
  worker_->record().synchronize();
  device_->upload(stream, staged_out.data(), out);
  stream.synchronize();
}

// The bytes of an input and an output of `call`, as many on all ranks.
std::pair<size_t, size_t> staged_nbytes(const CollectiveCall& call) {
  if (!call.cuts) return {call.in.nbytes(), call.out.nbytes()};
  const auto nbytes = [&](const std::vector<int64_t>& cuts) {
    return static_cast<size_t>(largest_part(cuts)) * size_of(call.in.dtype);
  };
  return {nbytes(call.cuts->before), nbytes(call.cuts->after)};
}

// The device's stream copies D2H, the worker takes part in the collective, the stream copies H2D:
// each waits for the other's event, the caller for none.
void HostStagedTransport::enqueue(CollectiveCall call, Stream& stream) {
  constexpr size_t kAlignment = 64;
  const auto [largest_in, largest_out] = staged_nbytes(call);
  const size_t in_nbytes = (largest_in + kAlignment - 1) / kAlignment * kAlignment;
  Staging& staging = stage(call, in_nbytes + largest_out);
  std::byte* const in = staging.memory.data();
  std::byte* const staged_out = in + in_nbytes;
  const TensorView out = call.out;
  const bool reads_out = call.output == Output::accumulate || call.op == Collective::broadcast;
  stream.wait(staging.free);
  device_->download(stream, call.in, in);
  if (reads_out) device_->download(stream, call.out, staged_out);
  worker_->wait(stream.record());
  start_on_host(std::move(call), in, staged_out);
  stream.wait(worker_->record());
  device_->upload(stream, staged_out, out);
  staging.free = stream.record();
}

}  // namespace

std::string gpu_of_rank(const std::string& identity) {
  return fmt::format("{} {}\n{}", host_name(), this_process().boot_id.data(), identity);
}

std::optional<std::string> shared_gpu(std::span<const std::string> gpus) {
  const auto address = [](std::string_view gpu) { return gpu.substr(0, gpu.find(", UUID")); };
  const std::string_view last = gpus.back();
  for (size_t rank = 0; rank + 1 < gpus.size(); ++rank) {
    if (address(gpus[rank]) != address(last)) continue;
    return fmt::format("ranks {} and {} have {} GPU ({})", rank, gpus.size() - 1,
                       gpus[rank] == last ? "the same" : "MIG instances of one",
                       address(last).substr(last.find('\n') + 1));
  }
  return std::nullopt;
}

std::shared_ptr<Communicator> make_device_communicator(const CommunicatorOptions& options) {
  if (options.world_size > 1) {
    ZR_CHECK(options.store != nullptr, "{} ranks need a store to find each other",
             options.world_size);
    const std::string shared = find_shared_gpu(
        GroupOptions(options), gpu_of_rank(open_cuda_backend().identity_of(*options.device)));
    const std::string share = read_environment("ZERORUN_SHARE_GPUS").value_or("");
    if (shared != kNone && !is_on(share)) {
      fail<ConfigError>(
          "{}, which NCCL refuses: show each rank a GPU of its own (CUDA_VISIBLE_DEVICES, srun "
          "--gpus-per-task=1), or start fewer; ZERORUN_SHARE_GPUS=1 lets ranks share, for tests",
          shared);
    }
    if (shared != kNone && share != "nccl") return make_host_staged_communicator(options);
  }
  if (read_environment("NCCL_COMM_BLOCKING")) {
    fail<ConfigError>(
        "NCCL_COMM_BLOCKING is set, and NCCL lets it take the place of what zerorun asks for each "
        "communicator: unset it");
  }
  return open_nccl_backend().make_communicator(options);
}

std::string describe_device_collectives() {
  try {
    return open_nccl_backend().describe();
  } catch (const DeviceError&) {
    return {};  // describe_cuda says what is missing
  }
}

std::shared_ptr<Communicator> make_host_staged_communicator(const CommunicatorOptions& options) {
  ZR_CHECK(options.device != nullptr, "got no device to copy from");
  const GroupOptions group(options);
  return std::make_shared<GroupCommunicator>(group, std::make_shared<HostStagedTransport>(group));
}

}  // namespace zerorun
