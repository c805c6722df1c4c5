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
                                   int64_t host_from, int64_t piece_numel) {
  std::vector<StatePiece> pieces;
  if (host_from > 0 || numel == 0) pieces.push_back({.begin = 0, .end = host_from});
  for (int64_t begin = host_from; begin < numel;) {
    int64_t end = numel;
    if (piece_numel < numel - begin) {
      end = std::min(numel, cut_near(layout, from + begin + piece_numel, from + begin) - from);
    }
    pieces.push_back({.begin = begin, .end = end, .on_host = true});
    begin = end;
  }
  return pieces;
}

}  // namespace zerorun
