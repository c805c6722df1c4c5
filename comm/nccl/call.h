#pragma once

#include <cstddef>
#include <string>

#include "comm/collective_call.h"
#include "comm/nccl/library.h"
#include "device/cuda/cuda_device.h"

namespace zerorun {

// A view as NCCL can read it: itself, or a copy of host memory (control words of checkpoints and
// hashes) on the device.
class OnDevice {
 public:
  OnDevice(CudaDevice& device, CudaStream& stream, TensorView view);
  TensorView view() const { return view_; }
  void write_back(CudaDevice& device, CudaStream& stream, TensorView host) const;

 private:
  TensorView view_;
  Buffer copy_;
};

// A collective on its way through NCCL, which takes device memory and one dtype. What has to be
// done before is submitted to the stream when this is made, what comes after by finish().
class NcclCall {
 public:
  // The size of the temporary for a reduction that is then cast or accumulated.
  static size_t scratch_nbytes(const CollectiveCall& call);

  // `word` is what a barrier reduces, `scratch` has scratch_nbytes(call).
  NcclCall(CudaDevice& device, CudaStream& stream, CollectiveCall call, TensorView word,
           std::byte* scratch);

  bool empty() const;        // nothing to send
  std::string name() const;  // for errors
  ncclResult_t enqueue(const NcclFunctions& nccl, ncclComm_t comm, int ranks) const;
  // In the place of enqueue(), in a job of one rank.
  void copy() const;
  void finish() const;

 private:
  // all_to_all, as a group of messages.
  ncclResult_t exchange(const NcclFunctions& nccl, ncclComm_t comm, int ranks) const;

  CudaDevice& device_;
  CudaStream& stream_;
  const CollectiveCall call_;  // as the caller made it
  const bool in_place_;
  const OnDevice out_;
  const OnDevice in_;
  const TensorView from_;
  const TensorView to_;
};

}  // namespace zerorun
