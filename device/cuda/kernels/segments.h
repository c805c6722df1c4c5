#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace zerorun::cuda {

// The segments of flat tensors of one launch. They are a parameter of the kernel, so nothing has to
// be uploaded. Each segment has thread blocks of its own, in order. `Others` is the type of the
// kernel's other parameters.
template <class Segment, typename... Others>
struct Segments {
  // Limit of a kernel's parameters in bytes, for all toolkits and drivers.
  static constexpr size_t kParameterBytes = 4096;
  static constexpr size_t kOtherBytes = (0 + ... + (sizeof(Others) + alignof(Others)));
  static constexpr size_t kOwnBytes = 16;  // count, the end of the last blocks, alignment
  static constexpr int kMaxSegments = static_cast<int>((kParameterBytes - kOtherBytes - kOwnBytes) /
                                                       (sizeof(Segment) + sizeof(unsigned)));

  struct Place {
    int segment = 0;
    unsigned block = 0;   // index among the segment's blocks
    unsigned blocks = 0;  // number of the segment's blocks
  };
  __device__ Place place() const {
    int segment = 0;
    // Binary search with first_block[segment] <= blockIdx.x < first_block[end].
    for (int end = count; end - segment > 1;) {
      const int middle = (segment + end) / 2;
      if (first_block[middle] <= blockIdx.x) {
        segment = middle;
      } else {
        end = middle;
      }
    }
    const unsigned first = first_block[segment];
    return {segment, blockIdx.x - first, first_block[segment + 1] - first};
  }

  // The rest is host code.
  unsigned blocks() const { return first_block[count]; }
  bool full() const { return count == kMaxSegments; }
  void clear() { count = 0; }
  void add(const Segment& segment, int64_t blocks) {
    static_assert(sizeof(Segments) + kOtherBytes <= kParameterBytes);
    at[count] = segment;
    first_block[count + 1] = first_block[count] + static_cast<unsigned>(blocks);
    ++count;
  }

  Segment at[kMaxSegments];
  unsigned first_block[kMaxSegments + 1] = {};
  int count = 0;
};

// Host code. Calls launch(segments) for the segments of `all` that are not empty, with as many at a
// time as fit. A segment gets blocks_of(segment) thread blocks.
template <class Some, typename Segment, typename BlocksOf, typename Launch>
void for_each_launch(std::span<const Segment> all, const BlocksOf& blocks_of,
                     const Launch& launch) {
  using Taken = std::remove_extent_t<decltype(Some::at)>;
  Some some;
  for (const Segment& segment : all) {
    if (segment.numel == 0) continue;
    if (some.full()) {
      launch(some);
      some.clear();
    }
    some.add(Taken(segment), blocks_of(segment));
  }
  if (some.count > 0) launch(some);
}

}  // namespace zerorun::cuda
