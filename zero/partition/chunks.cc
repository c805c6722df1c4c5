#include "zero/partition/chunks.h"

#include <algorithm>

namespace zerorun {

int64_t cut_near(const BucketLayout& layout, int64_t at, int64_t after) {
  if (at >= layout.padded_numel()) return layout.padded_numel();
  for (const Placement& placement : layout.placements) {
    if (placement.numel == 0) continue;
    if (at <= placement.offset) return placement.offset;  // in the padding before it
    if (at >= placement.offset + placement.numel) continue;
    const int64_t cut = placement.offset + (at - placement.offset) / kNormBlock * kNormBlock;
    if (cut > after) return cut;
    if (cut + kNormBlock < placement.offset + placement.numel) return cut + kNormBlock;
  }
  return layout.padded_numel();
}

std::vector<Chunk> cut_chunks(const BucketLayout& layout, int64_t from, int64_t numel,
                              int64_t host_from, ChunkSizes sizes) {
  std::vector<Chunk> chunks;
  const auto cut = [&](int64_t begin, int64_t last, int64_t chunk_numel, bool on_host) {
    while (begin < last) {
      int64_t end = last;
      if (chunk_numel < last - begin) {
        end = std::min(last, cut_near(layout, from + begin + chunk_numel, from + begin) - from);
      }
      const auto index = static_cast<int>(chunks.size());
      chunks.push_back({.begin = begin, .end = end, .index = index, .on_host = on_host});
      begin = end;
    }
  };
  cut(0, host_from, sizes.device, false);
  cut(host_from, numel, sizes.host, true);
  return chunks;
}

}  // namespace zerorun
