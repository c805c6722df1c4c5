#pragma once

#include <cstdint>
#include <vector>

#include "zero/partition.h"

namespace zerorun {

// A part of the optimizer states that a rank holds of a bucket: what is stored, moved and updated
// together. Elements count from the start of the held part.
struct StateChunk {
  int64_t begin = 0;
  int64_t end = 0;
  bool on_host = false;  // offloaded
  int index = -1;        // in its StateStore
  int64_t numel() const { return end - begin; }
};

// The last place at or before element `at` of a bucket, but after `after`, where states may be cut:
// the start of a parameter, or a multiple of kNormBlock elements from it. When there is none, the
// first one after `at`.
int64_t cut_near(const BucketLayout& layout, int64_t at, int64_t after);

// Elements of a chunk's parameters, about; padding on top.
struct ChunkSizes {
  int64_t device = 0;
  int64_t host = 0;
};
// Cuts elements [from, from + numel) of a bucket: what lies before `host_from` stays on the device,
// the rest goes to the host.
std::vector<StateChunk> cut_chunks(const BucketLayout& layout, int64_t from, int64_t numel,
                                   int64_t host_from, ChunkSizes sizes);

}  // namespace zerorun
