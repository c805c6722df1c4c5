#pragma once

namespace zerorun {

// What a ZeRO stage shards over the ranks. This is the only difference between stages 0 to 3.
// Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
// Models", arXiv 1910.02054.
struct StagePolicy {
  bool shard_state = false;
  bool shard_grads = false;
  bool shard_params = false;
};

constexpr StagePolicy stage_policy(int stage) {
  return {.shard_state = stage >= 1, .shard_grads = stage >= 2, .shard_params = stage >= 3};
}

}  // namespace zerorun
