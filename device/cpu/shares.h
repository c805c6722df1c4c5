#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "device/cpu/kernels.h"

namespace zerorun {

// One thread's share of a call's segments: blocks [from, to) of all of them. Every segment begins
// with a block of its own, and its last one may be short.
template <typename Segment>
struct Share {
  std::span<const Segment> segments;
  int64_t block = 1;  // elements
  int64_t from = 0;
  int64_t to = 0;

  // Calls body(segment, begin, end) with the first and last element of the tensors.
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

// Calls body(share) on the threads of core/parallel.h, which share the segments as one: many small
// ones cost what a large one does.
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
