#include "device/cuda/kernels/kernels.h"
#include "device/cuda/kernels/launch.h"
#include "device/decide_step.h"

namespace zerorun::cuda {

namespace {

__global__ void decide_alone(const int64_t* words, const int64_t* host_words, const int64_t* votes,
                             const int64_t* same, int64_t ranks, StepRule rule, float* decision) {
  decide_step(words, host_words, votes, same, ranks, rule, decision);
}

__global__ void ratio_each(const int64_t* sums, bool has_host, TrustRatioLimits limits,
                           int64_t count, float* ratios) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) ratios[i] = trust_ratio(sums, has_host, count, i, limits);
}

}  // namespace

void decide(cudaStream_t stream, const StepEvidence& evidence, const StepRule& rule,
            TensorView decision) {
  launch(decide_alone, 1, 1, stream, evidence.words.as<const int64_t>(), host_words_of(evidence),
         evidence.votes.as<const int64_t>(), evidence.same.as<const int64_t>(), evidence.ranks,
         rule, decision.as<float>());
}

void trust_ratios(cudaStream_t stream, TensorView sums, const TrustRatioLimits& limits,
                  TensorView ratios) {
  const int64_t count = ratios.numel;
  // Few parameters are spread over many multiprocessors.
  launch(ratio_each, static_cast<unsigned>((count + kWarp - 1) / kWarp), kWarp, stream,
         sums.as<const int64_t>(), has_host_sums(sums, ratios), limits, count, ratios.as<float>());
}

}  // namespace zerorun::cuda
