#pragma once

#include <cstdint>
#include <vector>

#include "zero/partition/partition.h"

namespace zerorun {

// A contiguous part of the range that a rank stores of a bucket: the unit in which parameters and
// optimizer states are stored, moved and updated. Elements count from the start of that range.
struct Chunk {
  int64_t begin = 0;
  int64_t end = 0;
  int index = 0;         // among the bucket's chunks
  bool on_host = false;  // its states are offloaded
  int state_index = -1;  // in the StateStore of the host or of the device; -1: frozen
  // Offloaded parameters only (Bucket::moves_params).
  bool param_in_file = false;  // else in pinned memory
  int param_index = -1;        // in the StateStore of either
  int64_t numel() const { return end - begin; }
};

// The last element at or before `at` of a bucket, but after `after`, where chunks may be cut: the
// start of a parameter, or a multiple of kNormBlock elements from it. When there is none, the first
// one after `at`.
int64_t cut_near(const BucketLayout& layout, int64_t at, int64_t after);

// Elements of parameters in a chunk, about; padding comes on top.
struct ChunkSizes {
  int64_t device = 0;
  int64_t host = 0;
};
// Cuts elements [from, from + numel) of a bucket: those before `host_from` stay on the device, the
// others go to the host.
std::vector<Chunk> cut_chunks(const BucketLayout& layout, int64_t from, int64_t numel,
                              int64_t host_from, ChunkSizes sizes);

}  // namespace zerorun
