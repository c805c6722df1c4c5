#include "zero/state_pieces.h"

#include <algorithm>

namespace zerorun {

int64_t cut_near(const BucketLayout& layout, int64_t at, int64_t after) {
  if (at >= layout.padded_numel()) return layout.padded_numel();
  for (const Placement& placement : layout.placements) {
    if (placement.numel == 0) continue;
    if (at <= placement.offset) return placement.offset;  // in the padding before it
    if (at >= placement.offset + placement.numel) continue;
    const int64_t cut = placement.offset + (at - placement.offset) / kNormChunk * kNormChunk;
    if (cut > after) return cut;
    if (cut + kNormChunk < placement.offset + placement.numel) return cut + kNormChunk;
  }
  return layout.padded_numel();
}

std::vector<StatePiece> cut_pieces(const BucketLayout& layout, int64_t from, int64_t numel,
                                   int64_t host_from, PieceSizes sizes) {
  std::vector<StatePiece> pieces;
  if (numel == 0) pieces.push_back({});
  const auto cut = [&](int64_t begin, int64_t last, int64_t piece_numel, bool on_host) {
    while (begin < last) {
      int64_t end = last;
      if (piece_numel < last - begin) {
        end = std::min(last, cut_near(layout, from + begin + piece_numel, from + begin) - from);
      }
      pieces.push_back({.begin = begin, .end = end, .on_host = on_host});
      begin = end;
    }
  };
  cut(0, host_from, sizes.device, false);
  cut(host_from, numel, sizes.host, true);
  return pieces;
}

}  // namespace zerorun
