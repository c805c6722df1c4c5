#include "device/cuda/kernels/kernels.h"
#include "device/cuda/kernels/launch.h"
#include "device/decide_step.h"

namespace zerorun::cuda {

namespace {

__global__ void decide_alone(const int64_t* words, const int64_t* votes, const int64_t* same,
                             int64_t ranks, StepRule rule, float* decision) {
  decide_step(words, votes, same, ranks, rule, decision);
}

}  // namespace

void decide(cudaStream_t stream, const StepEvidence& evidence, const StepRule& rule,
            TensorView decision) {
  launch(decide_alone, 1, 1, stream, evidence.words.as<const int64_t>(),
         evidence.votes.as<const int64_t>(), evidence.same.as<const int64_t>(), evidence.ranks,
         rule, decision.as<float>());
}

}  // namespace zerorun::cuda
