#include "tests/common.h"
#include "zero/memory_plan.h"
#include "zero/partition/partition.h"

namespace zerorun {
namespace {

// True if states may be cut at element `at` of the bucket.
bool may_cut(const BucketLayout& layout, int64_t at) {
  for (const Placement& placement : layout.placements) {
    const int64_t inside = at - placement.offset;
    if (inside > 0 && inside < placement.numel) return inside % kNormBlock == 0;
  }
  return true;
}

TEST(Chunks, CoverTheStoredRangeAndAreCutOnTheGridOfEveryParameter) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<SizedParameter> parameters;
    const int count = 1 + static_cast<int>(random() % 6);
    for (int i = 0; i < count; ++i) {
      const int64_t sizes[] = {0, 1, 97, 256, 1000, 5003};
      parameters.push_back({i, sizes[random() % 6]});
    }
    const int world_size = 1 + static_cast<int>(random() % 4);
    const BucketLayout layout = lay_out(parameters, world_size, random() % 2 == 0 ? 1 : 256);
    for (int rank = 0; rank < world_size; ++rank) {
      const int64_t from = rank * layout.shard_numel;
      const int64_t numel = layout.shard_numel;
      int64_t host_from = std::min(
          numel,
          cut_near(layout, from + static_cast<int64_t>(random() % (numel + 1)), from) - from);
      if (random() % 4 == 0) host_from = 0;
      const int64_t size = 256 + static_cast<int64_t>(random() % 1000);
      const bool whole = random() % 2 == 0;  // what stays on the device is one chunk
      const auto chunks = cut_chunks(layout, from, numel, host_from,
                                     {.device = whole ? numel : size, .host = size});
      int64_t at = 0;
      if (whole && host_from > 0) {
        EXPECT_EQ(chunks.front().end, host_from);
      }
      for (const Chunk& chunk : chunks) {
        EXPECT_EQ(&chunk, &chunks[static_cast<size_t>(chunk.index)]);
        EXPECT_EQ(chunk.begin, at);
        EXPECT_LT(chunk.begin, chunk.end);
        EXPECT_EQ(chunk.on_host, chunk.begin >= host_from);
        EXPECT_TRUE(chunk.begin == 0 || may_cut(layout, from + chunk.begin));
        int64_t numel_of_parameters = 0;
        for (const Interval& part : layout.intervals(from + chunk.begin, from + chunk.end)) {
          numel_of_parameters += part.numel;
        }
        EXPECT_TRUE((whole && !chunk.on_host) || numel_of_parameters <= size + kNormBlock);
        at = chunk.end;
      }
      EXPECT_EQ(at, numel);
    }
  }
}

// So a plan for ranks that could never hold their shards ends soon, too.
TEST(Chunks, OfAnyModelAreFew) {
  Config config;
  config.zero.stage = 2;
  config.offload.optimizer.device = OffloadDevice::cpu;
  for (const int64_t numel : {int64_t{1} << 22, int64_t{1} << 40, int64_t{1} << 49}) {
    std::vector<ParameterSpec> specs;
    for (const char* name : {"a", "b", "c"}) specs.push_back({name, {numel / 256, 256}, "m"});
    const ShardedModel model(config, specs, 2, /*computes_on_host=*/true);
    size_t chunks = 0;
    for (const Bucket& bucket : model.buckets) chunks += bucket.chunks.size();
    EXPECT_GE(static_cast<int64_t>(chunks), 3 * std::min<int64_t>(numel / 2 >> 22, 1 << 14));
    EXPECT_LE(chunks, size_t{(1 << 16) + 3 * 2});
  }
}

}  // namespace
}  // namespace zerorun
