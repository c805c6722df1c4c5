#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "zerorun/device.h"
#include "zerorun/tensor.h"

// The arithmetic of the CPU device. The functions do what the Device functions with the same name
// specify, on the caller's thread and those of core/parallel.h. The device has already checked
// dtypes and sizes.
namespace zerorun::kernels {

// Minimum number of elements per thread: with fewer, another thread costs more than it saves. A
// multiple of kNormBlock.
inline constexpr int64_t kGrain = 32768;

void fill(TensorView dst, float value);
void cast(TensorView src, TensorView dst);
void add(TensorView src, TensorView dst);
void scale(TensorView dst, float factor);
void sum_of_squares(TensorView src, std::span<const SquaresSegment> segments, TensorView sums);
void quantize(TensorView src, TensorView dst, const Quantization& how);
void dequantize(TensorView src, TensorView dst, const Dequantization& how);
void update(const UpdateTensors& tensors, std::span<const UpdateSegment> segments);
void orthogonalize(TensorView matrix, int64_t rows, int64_t cols, const Orthogonalization& how,
                   TensorView work);

// The part of a call's segments that one thread processes: blocks [from, to) of all segments
// together. Every segment begins with a new block, and its last block may be short.
template <typename Segment>
struct Share {
  std::span<const Segment> segments;
  int64_t block = 1;  // elements
  int64_t from = 0;
  int64_t to = 0;

  // Calls body(segment, begin, end) for each segment of the share, with the range of elements in
  // the tensors.
  template <typename Body>
  void for_each(Body&& body) const {
    int64_t first = 0;  // block of the segment
    for (const Segment& segment : segments) {
      const int64_t begin = std::max<int64_t>(from - first, 0) * block;
      const int64_t end = std::min((to - first) * block, segment.numel);
      if (begin < end) body(segment, segment.begin + begin, segment.begin + end);
      first += blocks_of(segment.numel, block);
    }
  }

  static int64_t blocks_of(int64_t numel, int64_t block) { return (numel + block - 1) / block; }
};

// Divides the segments among the threads of core/parallel.h as if they were one, and calls
// body(share) on each thread. So many small segments cost about as much as one large segment.
template <typename Segment, typename Body>
void parallel_for_shares(std::span<const Segment> segments, int64_t block, const Body& body) {
  int64_t blocks = 0;
  for (const Segment& segment : segments) {
    blocks += Share<Segment>::blocks_of(segment.numel, block);
  }
  parallel_for(blocks, kGrain / block, [&](int64_t from, int64_t to) {
    body(Share<Segment>{segments, block, from, to});
  });
}

}  // namespace zerorun::kernels
