#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zero/partition.h"
#include "zero/stage.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Parameters that communicate together, and the flat memory that they view.
struct Bucket {
  int index = 0;
  std::string label;  // "bucket 3 (h.0.attn.weight .. h.2.mlp.bias)"
  BucketPlan plan;
  BucketLayout layout;

  // Parameters, in the model's dtype. `param_full` has no data while a sharded bucket is released.
  TensorView param_shard;
  TensorView param_full;
  bool resident = false;  // sharded, but all shards lie in memory of this host: always addressable

  // Gradients. `grad` is where backward writes below stage 2 (from stage 2 on: a pool slot).
  // `reduced` is this rank's part of the reduced gradient (the whole bucket at stage 0).
  TensorView grad;
  TensorView reduced;

  int state_shard = -1;  // index in the StateStore; -1 for frozen parameters
};

// What every part of the engine needs to know; constant after construction.
struct EngineContext {
  Device& device;
  Communicator& comm;
  std::span<const ParameterSpec> specs;
  StagePolicy policy;
  ZeroConfig zero;
  DType param_dtype = DType::fp32;
  DType comm_dtype = DType::fp32;   // of gradients on their way
  DType accum_dtype = DType::fp32;  // of reduced gradients
  double pre_scale = 1.0;           // what each rank multiplies its gradient with before the sum
  int64_t accumulation_steps = 1;
  bool share_parameters = true;
  int64_t parameter_alignment = 1;  // of parameters within their bucket, at least
};

// Whether the reduced gradient replaces the gradient that it was made from: below stage 2, with one
// micro-step and one dtype.
bool reduces_in_place(const EngineContext& context);

// Owner of the buckets' parameter memory and of their gradient memory outside the pool.
class BucketMemory {
 public:
  // Collective. Allocates and sets the views of all buckets.
  BucketMemory(const EngineContext& context, std::vector<Bucket>& buckets);

 private:
  void place_replicated(std::vector<Bucket>& buckets);
  void place_sharded(std::vector<Bucket>& buckets);
  void place_gradients(std::vector<Bucket>& buckets);
  // One block for all; nothing when the transport cannot give it.
  std::optional<TensorView> share(int64_t numel, Sharing sharing, MemoryCategory category);

  const EngineContext& context_;
  std::vector<Buffer> buffers_;
  std::vector<std::shared_ptr<void>> ledger_;
};

// Buckets with their layouts; memory comes later.
std::vector<Bucket> make_buckets(const EngineContext& context, std::span<const int64_t> numels,
                                 std::span<const ModuleId> modules);

}  // namespace zerorun
