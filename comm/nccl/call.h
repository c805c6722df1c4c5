#pragma once

#include <cstddef>

#include "comm/collective_call.h"
#include "comm/nccl/library.h"
#include "comm/nccl/pending_calls.h"
#include "device/cuda/cuda_device.h"

namespace zerorun {

// A tensor that NCCL can use: the tensor itself if the device addresses it, else a copy on the
// device (control words of checkpoints, and hashes, are in ordinary host memory).
class OnDevice {
 public:
  OnDevice(CudaDevice& device, CudaStream& stream, TensorView view);
  // Of one that the device is known to address.
  explicit OnDevice(TensorView view) : view_(view) {}
  TensorView view() const { return view_; }
  // False if it is the tensor itself.
  bool write_back(CudaDevice& device, CudaStream& stream, TensorView host) const;

 private:
  TensorView view_;
  Buffer copy_;
};

// One collective call as NCCL performs it. NCCL needs device memory and the same dtype for input
// and output. The constructor submits preparatory copies and casts to the stream, enqueue() the
// collective, and finish() the copies, casts or additions that follow it.
class NcclCall {
 public:
  // Bytes of temporary memory, for a reduction whose result is then cast or accumulated.
  static size_t scratch_nbytes(const CollectiveCall& call);

  // `word`: the element that a barrier reduces. `scratch`: scratch_nbytes(call) bytes.
  NcclCall(CudaDevice& device, CudaStream& stream, CollectiveCall call, TensorView word,
           std::byte* scratch);

  bool empty() const;    // nothing to send, on any rank
  CallName take_name();  // for errors; at most once
  ncclResult_t enqueue(const NcclFunctions& nccl, ncclComm_t comm, int rank, int ranks) const;
  // Replaces enqueue() in a job of one rank.
  void copy() const;
  // False if there is nothing to do: the collective was all.
  bool finish() const;

 private:
  // all_to_all as one NCCL group of sends and receives.
  ncclResult_t exchange(const NcclFunctions& nccl, ncclComm_t comm, int rank, int ranks) const;

  CudaDevice& device_;
  CudaStream& stream_;
  CollectiveCall call_;  // as the caller made it
  bool in_place_;
  OnDevice out_;
  OnDevice in_;
  TensorView from_;
  TensorView to_;
};

}  // namespace zerorun
