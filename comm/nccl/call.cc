#include "comm/nccl/call.h"

#include <array>
#include <utility>

#include "device/cuda/kernels/kernels.h"
#include "device/cuda/runtime/cuda_memory.h"

namespace zerorun {

namespace {

ncclDataType_t nccl_type(DType dtype) {
  constexpr std::array kTypes = {ncclFloat32, ncclBfloat16, ncclFloat16, ncclInt64, ncclUint8};
  return kTypes.at(static_cast<size_t>(dtype));
}

ncclRedOp_t nccl_op(ReduceOp op) {
  constexpr std::array kOps = {ncclSum, ncclMax, ncclMin};
  return kOps.at(static_cast<size_t>(op));
}

CollectiveCall with_word(CollectiveCall call, TensorView word) {
  if (call.op == Collective::barrier) call.in = call.out = word;
  return call;
}

bool reduces(const CollectiveCall& call) {
  return call.op == Collective::all_reduce || call.op == Collective::reduce_scatter ||
         call.op == Collective::barrier;
}

}  // namespace

OnDevice::OnDevice(CudaDevice& device, CudaStream& stream, TensorView view) : view_(view) {
  if (view.empty() || is_addressable(view.data)) return;
  copy_ = device.scratch(stream, view.nbytes());
  view_.data = copy_.data();
  device.upload(stream, view.data, view_);
}

bool OnDevice::write_back(CudaDevice& device, CudaStream& stream, TensorView host) const {
  if (copy_) device.download(stream, view_, host.data);
  return static_cast<bool>(copy_);
}

size_t NcclCall::scratch_nbytes(const CollectiveCall& call) {
  const bool as_it_is = call.output != Output::accumulate && call.in.dtype == call.out.dtype;
  if (!reduces(call) || as_it_is || call.in.empty()) return 0;
  return TensorView{nullptr, call.out.numel, call.in.dtype}.nbytes();
}

NcclCall::NcclCall(CudaDevice& device, CudaStream& stream, CollectiveCall call, TensorView word,
                   std::byte* scratch)
    : device_(device),
      stream_(stream),
      call_(with_word(std::move(call), word)),
      in_place_(call_.in.data == call_.out.data && call_.in.numel <= call_.out.numel),
      out_(device, stream, call_.out),
      in_(in_place_ ? OnDevice(out_.view()) : OnDevice(device, stream, call_.in)),
      from_(in_place_ ? TensorView{out_.view().data, call_.in.numel, call_.in.dtype} : in_.view()),
      to_(scratch_nbytes(call_) == 0 ? out_.view()
                                     : TensorView{scratch, call_.out.numel, call_.in.dtype}) {}

bool NcclCall::empty() const {
  if (call_.cuts) return call_.cuts->before.back() == call_.cuts->before.front();
  return reduces(call_) ? from_.empty() : to_.empty();
}

CallName NcclCall::take_name() {
  return {.label = std::move(call_.label), .op = call_.op, .bytes = count_of(call_).bytes};
}

ncclResult_t NcclCall::enqueue(const NcclFunctions& nccl, ncclComm_t comm, int rank,
                               int ranks) const {
  const cudaStream_t stream = stream_.handle();
  const auto count = static_cast<size_t>(to_.numel);
  const ncclDataType_t type = nccl_type(from_.dtype);
  switch (call_.op) {
    case Collective::all_reduce:
    case Collective::barrier:
      return nccl.all_reduce(from_.data, to_.data, count, type, nccl_op(call_.reduce), comm,
                             stream);
    case Collective::reduce_scatter:
      return nccl.reduce_scatter(from_.data, to_.data, count, type, ncclSum, comm, stream);
    case Collective::broadcast:
      return nccl.broadcast(from_.data, to_.data, from_.nbytes(), ncclUint8, call_.root, comm,
                            stream);
    case Collective::all_gather:
      return nccl.all_gather(from_.data, to_.data, from_.nbytes(), ncclUint8, comm, stream);
    case Collective::all_to_all:
      return exchange(nccl, comm, rank, ranks);
  }
  return ncclInvalidArgument;
}

ncclResult_t NcclCall::exchange(const NcclFunctions& nccl, ncclComm_t comm, int rank,
                                int ranks) const {
  const Slices slices(call_, ranks);
  const size_t element = size_of(from_.dtype);
  const auto bytes = [&](int64_t numel) { return static_cast<size_t>(numel) * element; };
  const auto is_under_way = [](ncclResult_t result) {
    return result == ncclSuccess || result == ncclInProgress;
  };
  ncclResult_t result = nccl.group_start();
  if (result != ncclSuccess) return result;
  for (int peer = 0; peer < ranks && is_under_way(result); ++peer) {
    const Slices::Slice sent = slices.between(rank, peer);
    if (sent.numel > 0) {
      result = nccl.send(from_.data + bytes(sent.begin_in), bytes(sent.numel), ncclUint8, peer,
                         comm, stream_.handle());
    }
    const Slices::Slice received = slices.between(peer, rank);
    if (!is_under_way(result) || received.numel == 0) continue;
    result = nccl.receive(to_.data + bytes(received.begin_out), bytes(received.numel), ncclUint8,
                          peer, comm, stream_.handle());
  }
  const ncclResult_t ended = nccl.group_end();  // also after an error
  return is_under_way(result) ? ended : result;
}

void NcclCall::copy() const { cuda::cast(stream_.handle(), from_, to_); }

bool NcclCall::finish() const {
  const TensorView out = out_.view();
  const bool is_elsewhere = to_.data != out.data;
  if (is_elsewhere) {
    if (call_.output != Output::accumulate) {
      cuda::cast(stream_.handle(), to_, out);
    } else if (call_.reduce == ReduceOp::sum) {
      cuda::add(stream_.handle(), to_, out);
    } else {
      cuda::extreme(stream_.handle(), to_, out, call_.reduce == ReduceOp::max);
    }
  }
  return out_.write_back(device_, stream_, call_.out) || is_elsewhere;
}

}  // namespace zerorun
