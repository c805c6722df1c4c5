#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "device/cpu/kernels.h"

namespace zerorun {

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
  parallel_for(blocks, kernels::kGrain / block, [&](int64_t from, int64_t to) {
    body(Share<Segment>{segments, block, from, to});
  });
}

}  // namespace zerorun
