#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace zerorun::cuda {

// Segments of flat tensors, as one launch takes them. They travel as a parameter of the kernel, so
// nothing is uploaded and nobody waits. Every segment has thread blocks of its own, in order.
// `Others`: the kernel's other parameters.
template <class Segment, typename... Others>
struct Segments {
  // The limit of a kernel's parameters that every toolkit and driver keeps.
  static constexpr size_t kParameterBytes = 4096;
  static constexpr size_t kOtherBytes = (0 + ... + (sizeof(Others) + alignof(Others)));
  static constexpr size_t kOwnBytes = 16;  // count, the end of the last blocks, alignment
  static constexpr int kMaxSegments = static_cast<int>((kParameterBytes - kOtherBytes - kOwnBytes) /
                                                       (sizeof(Segment) + sizeof(unsigned)));

  // The place of a thread block.
  struct Place {
    int segment = 0;
    unsigned block = 0;   // of the segment's
    unsigned blocks = 0;  // that the segment has
  };
  __device__ Place place() const {
    int segment = 0;
    // By halves; first_block[segment] <= blockIdx.x < first_block[end].
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

  // Host code from here on.
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

// Host code. Calls launch(segments) for those of `all` that are not empty, as many at a time as
// fit; a segment gets blocks_of(segment) thread blocks.
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
