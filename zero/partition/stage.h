#pragma once

namespace zerorun {

// A ZeRO stage says what is sharded over the ranks; stages 0 to 3 differ in nothing else.
// Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
// Models".
struct StagePolicy {
  bool shard_state = false;
  bool shard_grads = false;
  bool shard_params = false;
};

constexpr StagePolicy stage_policy(int stage) {
  return {.shard_state = stage >= 1, .shard_grads = stage >= 2, .shard_params = stage >= 3};
}

}  // namespace zerorun
