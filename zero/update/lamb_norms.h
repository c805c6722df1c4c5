#pragma once

#include <cstdint>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/storage/chunk_storage.h"

namespace zerorun {

// For each parameter the L2 norms of itself and of its direction: exact sums of squares, with one
// collective for all.
class LambNorms {
 public:
  // `pipeline` is null when nothing is offloaded.
  LambNorms(const EngineContext& context, HostPipeline* pipeline);
  LambNorms(const LambNorms&) = delete;
  LambNorms& operator=(const LambNorms&) = delete;
  ~LambNorms() {
    if (pipeline_ != nullptr) pipeline_->drain();
  }

  // Adds what this rank owns of a chunk's parameters and of their directions.
  void add(const ActiveChunk& active, TensorView directions);
  // Collective, after everything was added.
  void finish(Stream& comm_stream);

  double parameter(ParameterId id) const { return norm(id); }
  double direction(ParameterId id) const { return norm(parameters_ + id); }

 private:
  double norm(int64_t sum) const;

  const EngineContext& context_;
  HostPipeline* const pipeline_;
  const int64_t parameters_;
  const int64_t words_;  // of all sums that one side adds: of parameters, then of directions
  Buffer buffer_;
  TensorView sums_;            // of the device; behind them, room for those of the host
  std::vector<int64_t> host_;  // of the host; then the result
};

}  // namespace zerorun
