#include "comm/nccl_communicator.h"

#include <string>
#include <utility>

#include "comm/call_communicator.h"
#include "comm/nccl_group.h"
#include "core/check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/kernels.h"
#include "device/cuda/profiler_range.h"

namespace zerorun {

namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::fp16:
      return ncclFloat16;
    case DType::int64:
      return ncclInt64;
    case DType::uint8:
      return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return ncclSum;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::min:
      return ncclMin;
  }
  return ncclSum;
}

// An error of a job of one rank, which has no group.
class Aborted final : public CudaStream::Watched {
 public:
  void set(std::string text) {
    const std::lock_guard lock(mutex_);
    if (text_.empty()) text_ = std::move(text);
  }
  void check() const override {
    const std::lock_guard lock(mutex_);
    if (!text_.empty()) throw CommError(text_);
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

// A view as NCCL can read it: itself, or a copy of host memory (control words of checkpoints and
// hashes) on the device.
class OnDevice {
 public:
  OnDevice(CudaDevice& device, CudaStream& stream, TensorView view) : view_(view) {
    if (view.empty() || is_device_memory(view.data)) return;
    copy_ = device.pool().scratch(stream, view.nbytes());
    view_.data = copy_.data();
    device.upload(stream, view.data, view_);
  }
  TensorView view() const { return view_; }
  void write_back(CudaDevice& device, CudaStream& stream, TensorView host) const {
    if (copy_) device.download(stream, view_, host.data);
  }

 private:
  TensorView view_;
  Buffer copy_;
};

class NcclCommunicator final : public CallCommunicator {
 public:
  NcclCommunicator(const CommunicatorOptions& options, std::shared_ptr<CudaDevice> device)
      : CallCommunicator(options.rank, options.world_size),
        device_(std::move(device)),
        word_(device_->allocate(sizeof(int64_t), MemoryCategory::other)) {
    if (options.world_size > 1) {
      group_ = std::make_shared<NcclGroup>(options, device_->index());
      watched_ = group_;
    } else {
      aborted_ = std::make_shared<Aborted>();
      watched_ = aborted_;
    }
  }

  std::string transport() const override { return group_ ? "nccl" : "self"; }
  bool reads_peers() const override { return false; }

  std::optional<Buffer> allocate(size_t nbytes, Sharing sharing) override;

  void abort(std::string_view reason) noexcept override {
    if (group_) return group_->abort(reason);
    try {
      aborted_->set(fmt::format("rank 0 aborted the job: {}", reason));
    } catch (const std::bad_alloc&) {
      aborted_->set("aborted");
    }
  }

 private:
  void submit(CollectiveCall call, Stream& stream) override;
  void start(CollectiveCall& call, CudaStream& stream);
  void reduce(const CollectiveCall& call, CudaStream& stream);
  // The sum over ranks, in the inputs' dtype.
  void reduce_to(const CollectiveCall& call, TensorView out, CudaStream& stream);
  void move(const CollectiveCall& call, CudaStream& stream);
  void run(const CollectiveCall& call, CudaStream& stream, const NcclGroup::Enqueue& enqueue);
  Buffer allocate_block(size_t nbytes);

  const std::shared_ptr<CudaDevice> device_;
  const Buffer word_;                             // what a barrier reduces
  std::shared_ptr<NcclGroup> group_;              // null for one rank,
  std::shared_ptr<Aborted> aborted_;              // which has this
  std::shared_ptr<CudaStream::Watched> watched_;  // either
};

std::optional<Buffer> NcclCommunicator::allocate(size_t nbytes, Sharing sharing) {
  watched_->check();
  if (sharing == Sharing::per_host) return std::nullopt;
  Buffer block = allocate_block(nbytes);
  device_->fill(device_->inline_stream(),
                view_of(block, DType::uint8, static_cast<int64_t>(nbytes)), 0.0F);
  device_->inline_stream().synchronize();
  return block;
}

// Not in the device's ledger: the caller accounts for it, as for all memory of communicators.
Buffer NcclCommunicator::allocate_block(size_t nbytes) {
  if (group_ && nbytes > 0) {
    Buffer registered = group_->allocate(nbytes, group_);
    if (registered) return registered;
  }
  CudaPool& pool = device_->pool();
  void* const data = pool.allocate(nbytes);
  if (data == nullptr) {
    fail<DeviceError>("{}: cannot allocate {} to communicate", device_->name(),
                      format_bytes(nbytes));
  }
  return {data, nbytes, [data, shared = pool.shared_from_this()] { shared->free(data); }};
}

void NcclCommunicator::submit(CollectiveCall call, Stream& stream) {
  CudaStream& cuda = cuda_stream(stream);
  watched_->check();
  cuda.watch(watched_);
  const CurrentDevice current(device_->index());
  const ProfilerRange range(call.label.c_str());
  const TensorView host_out = call.out;
  const OnDevice out(*device_, cuda, call.out);
  const bool in_place = call.in.data == call.out.data && call.in.numel <= call.out.numel;
  const OnDevice in(*device_, cuda, in_place ? out.view() : call.in);
  call.out = out.view();
  call.in = in_place ? TensorView{call.out.data, call.in.numel, call.in.dtype} : in.view();
  start(call, cuda);
  out.write_back(*device_, cuda, host_out);
}

void NcclCommunicator::start(CollectiveCall& call, CudaStream& stream) {
  switch (call.op) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
      return reduce(call, stream);
    case Collective::all_gather:
    case Collective::broadcast:
      return move(call, stream);
    case Collective::barrier:
      call.in = call.out = view_of(word_, DType::int64, 1);
      return reduce_to(call, call.out, stream);
  }
}

void NcclCommunicator::run(const CollectiveCall& call, CudaStream& stream,
                           const NcclGroup::Enqueue& enqueue) {
  group_->run(
      fmt::format("{} '{}' of {} bytes", name_of(call.op), call.label, count_of(call).bytes),
      stream, enqueue);
}

void NcclCommunicator::reduce(const CollectiveCall& call, CudaStream& stream) {
  if (call.in.empty()) return;
  const bool accumulates = call.output == Output::accumulate;
  if (!accumulates && call.in.dtype == call.out.dtype) return reduce_to(call, call.out, stream);
  TensorView sum = {nullptr, call.out.numel, call.in.dtype};
  const Buffer scratch = device_->pool().scratch(stream, sum.nbytes());
  sum.data = scratch.data();
  reduce_to(call, sum, stream);
  if (!accumulates) {
    cuda::cast(stream.handle(), sum, call.out);
  } else if (call.reduce == ReduceOp::sum) {
    cuda::add(stream.handle(), sum, call.out);
  } else {
    cuda::extreme(stream.handle(), sum, call.out, call.reduce == ReduceOp::max);
  }
}

void NcclCommunicator::reduce_to(const CollectiveCall& call, TensorView out, CudaStream& stream) {
  if (!group_) return cuda::cast(stream.handle(), call.in, out);
  run(call, stream, [&](const NcclFunctions& nccl, ncclComm_t comm) {
    const auto* in = call.in.data;
    const auto count = static_cast<size_t>(out.numel);
    const ncclDataType_t type = nccl_type(call.in.dtype);
    if (call.op == Collective::reduce_scatter) {
      return nccl.reduce_scatter(in, out.data, count, type, ncclSum, comm, stream.handle());
    }
    return nccl.all_reduce(in, out.data, count, type, nccl_op(call.reduce), comm, stream.handle());
  });
}

void NcclCommunicator::move(const CollectiveCall& call, CudaStream& stream) {
  if (call.out.empty()) return;
  if (!group_) return cuda::cast(stream.handle(), call.in, call.out);
  run(call, stream, [&](const NcclFunctions& nccl, ncclComm_t comm) {
    const size_t bytes = call.in.nbytes();
    if (call.op == Collective::broadcast) {
      return nccl.broadcast(call.in.data, call.out.data, bytes, ncclUint8, call.root, comm,
                            stream.handle());
    }
    return nccl.all_gather(call.in.data, call.out.data, bytes, ncclUint8, comm, stream.handle());
  });
}

}  // namespace

std::shared_ptr<Communicator> make_nccl_communicator(const CommunicatorOptions& options) {
  auto device = std::dynamic_pointer_cast<CudaDevice>(options.device);
  ZR_CHECK(device != nullptr, "NCCL needs a CUDA device");
  return std::make_shared<NcclCommunicator>(options, std::move(device));
}

}  // namespace zerorun
