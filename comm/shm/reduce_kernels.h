#pragma once

#include <cstddef>
#include <span>

#include "zerorun/communicator.h"
#include "zerorun/tensor.h"

// The arithmetic of collectives in host memory. It runs on the caller's thread and those of
// core/parallel.h. Results do not depend on the instruction set or the number of threads.
namespace zerorun {

struct Reduction {
  std::span<const std::byte* const> sources;  // one per rank; out.numel elements each
  DType dtype = DType::fp32;                  // of the sources
  ReduceOp op = ReduceOp::sum;
  Output output = Output::overwrite;
};

// Computes out[i] = sources[0][i] op sources[1][i] op ... in fp32 (int64 for int64; sums wrap),
// rounded once at the end. With Output::accumulate the old out[i] is combined last.
//
// The order of operations is a fixed binary tree: the result of sources [0, n) is that of the first
// p combined with that of the rest, where p is the largest power of two below n. So any aligned 2^k
// neighbouring sources form a subtree, which can be reduced before, on another rank, and passed as
// one source.
//
// `out` has any floating-point dtype if the sources have one. It may be one of the sources. max and
// min (fp32 or int64, to the same dtype) give NaN if any input is NaN.
void reduce(const Reduction& reduction, TensorView out);

// Copies between ranges that do not overlap. Large copies bypass the caches.
void copy_bytes(std::byte* out, const std::byte* in, size_t nbytes);

}  // namespace zerorun
