#pragma once

#include <cstdint>
#include <vector>

#include "zero/partition/partition.h"

namespace zerorun {

// A contiguous part of the stored range of a bucket (Bucket::stored), the unit in which parameters
// and optimizer states are stored, moved and updated. Elements count from the begin of that range.
struct Chunk {
  int64_t begin = 0;
  int64_t end = 0;
  int index = 0;         // among the bucket's chunks
  bool on_host = false;  // its optimizer states are offloaded
  int state_index = -1;  // in the StateStore of the host or of the device; -1: frozen
  // Only for offloaded parameters (Bucket::moves_params).
  bool param_in_file = false;  // else in pinned memory
  int param_index = -1;        // in the StateStore of either
  int64_t numel() const { return end - begin; }
};

// The position nearest to `at` where chunks of the bucket may be cut: the start of a parameter, or
// a multiple of kNormBlock elements from it. It is the last such position at or before `at` but
// after `after`; if there is none, the first one after `at`.
int64_t cut_near(const BucketLayout& layout, int64_t at, int64_t after);

// Approximate numbers of parameter elements in a chunk, without padding.
struct ChunkSizes {
  int64_t device = 0;
  int64_t host = 0;
};
// Cuts elements [from, from + numel) of a bucket into chunks. Elements before `host_from` stay on
// the device; the others are offloaded to the host.
std::vector<Chunk> cut_chunks(const BucketLayout& layout, int64_t from, int64_t numel,
                              int64_t host_from, ChunkSizes sizes);

}  // namespace zerorun
