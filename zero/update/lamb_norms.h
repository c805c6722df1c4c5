#pragma once

#include <cstdint>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/storage/chunk_storage.h"

namespace zerorun {

// Computes for each parameter the L2 norms of the parameter and of its update direction, for Lamb's
// trust ratio. The sums of squares are exact, and one collective exchanges all of them.
class LambNorms {
 public:
  // `pipeline`: null if nothing is offloaded.
  LambNorms(const EngineContext& context, HostPipeline* pipeline);
  LambNorms(const LambNorms&) = delete;
  LambNorms& operator=(const LambNorms&) = delete;
  ~LambNorms() {
    if (pipeline_ != nullptr) pipeline_->drain();
  }

  // Adds the intervals of a chunk that this rank owns.
  void add(const ActiveChunk& active, TensorView directions);
  // Exchanges the sums after all chunks were added. Collective.
  void finish(Stream& comm_stream);

  double parameter(ParameterId id) const { return norm(id); }
  double direction(ParameterId id) const { return norm(parameters_ + id); }

 private:
  double norm(int64_t sum) const;

  const EngineContext& context_;
  HostPipeline* const pipeline_;
  const int64_t parameters_;
  const int64_t words_;  // words of all sums of one side: of parameters, then of directions
  Buffer buffer_;
  TensorView sums_;            // sums of the device, then space for those of the host
  std::vector<int64_t> host_;  // sums of the host, later the result
};

}  // namespace zerorun
