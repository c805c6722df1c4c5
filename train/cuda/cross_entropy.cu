#include "train/cuda/elements.h"

namespace zerorun::train::cuda {

namespace {

// A row's largest score, and the sum of exp(score - largest).
struct RowSums {
  float largest;
  float sum;
};

// The scores that a thread looks at, one after the other.
template <int N>
__device__ inline void add_scores(const float (&scores)[N], RowSums& sums) {
  float largest = sums.largest;
#pragma unroll
  for (int k = 0; k < N; ++k) largest = fmaxf(largest, scores[k]);
  float sum = sums.largest == largest ? sums.sum : sums.sum * expf(sums.largest - largest);
#pragma unroll
  for (int k = 0; k < N; ++k) sum += expf(scores[k] - largest);
  sums = {largest, sum};
}

// Combines the sums of a whole block, in each of its threads.
__device__ inline RowSums combine(RowSums own) {
  __shared__ float largest_of[kWarps];
  __shared__ float sum_of[kWarps];
  const float of_warp = warp_max(own.largest);
  if (lane() == 0) largest_of[warp()] = of_warp;
  __syncthreads();
  float largest = largest_of[0];
  for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, largest_of[w]);
  // Threads without a score have none of the sum.
  const float scaled = own.sum == 0.0F ? 0.0F : own.sum * expf(own.largest - largest);
  const float sum_of_warp = warp_sum(scaled);
  if (lane() == 0) sum_of[warp()] = sum_of_warp;
  __syncthreads();
  float sum = 0.0F;
  for (int w = 0; w < kWarps; ++w) sum += sum_of[w];
  return {largest, sum};
}

template <int N, typename T>
__device__ RowSums sums_of_row(int64_t vocabulary, const T* logits) {
  RowSums sums{-HUGE_VALF, 0.0F};
  const int64_t whole = vocabulary / N * N;
  for (int64_t i = threadIdx.x * N; i < whole; i += kThreads * N) {
    float scores[N];
    read<N>(logits + i, scores);
    add_scores<N>(scores, sums);
  }
  for (int64_t i = whole + threadIdx.x; i < vocabulary; i += kThreads) {
    const float score[1] = {widen(logits[i])};
    add_scores<1>(score, sums);
  }
  return combine(sums);
}

// A block for each row. `weight` is that of a row in the gradient.
template <typename T, int N>
__global__ void cross_entropy_rows(LogitsShape shape, const int32_t* targets, float weight,
                                   T* logits, float* losses) {
  logits += blockIdx.x * shape.stride;
  const int64_t vocabulary = shape.vocabulary;
  const int32_t target = targets[blockIdx.x];
  const float target_score = widen(logits[target]);  // before anything is replaced
  const RowSums sums = sums_of_row<N>(vocabulary, logits);
  if (threadIdx.x == 0) losses[blockIdx.x] = sums.largest - target_score + logf(sums.sum);
  const float factor = weight / sums.sum;
  const int64_t whole = vocabulary / N * N;
  const auto gradient = [&](float score, int64_t i) {
    return expf(score - sums.largest) * factor - (i == target ? weight : 0.0F);
  };
  for (int64_t i = threadIdx.x * N; i < whole; i += kThreads * N) {
    float scores[N];
    read<N>(logits + i, scores);
#pragma unroll
    for (int k = 0; k < N; ++k) scores[k] = gradient(scores[k], i + k);
    write<N>(scores, logits + i);
  }
  for (int64_t i = whole + threadIdx.x; i < vocabulary; i += kThreads) {
    narrow(gradient(widen(logits[i]), i), &logits[i]);
  }
}

__global__ void move_sum(double* sum, float* to) {
  *to = static_cast<float>(*sum);
  *sum = 0.0;
}

// sum += the losses' part of a mean, added in an order that depends on their number only. One
// block.
__global__ void add_mean(int64_t rows, int64_t mean_rows, const float* losses, double* sum) {
  __shared__ double parts[kThreads];
  double part = 0.0;
  for (int64_t row = threadIdx.x; row < rows; row += kThreads) part += double{losses[row]};
  parts[threadIdx.x] = part;
  __syncthreads();
  if (threadIdx.x > 0) return;
  double total = 0.0;
  for (int i = 0; i < kThreads; ++i) total += parts[i];
  *sum += total / static_cast<double>(mean_rows);
}

}  // namespace

void cross_entropy_gradient(cudaStream_t stream, const LogitsShape& shape, const int32_t* targets,
                            float loss_scale, TensorView logits, const LossBuffers& loss) {
  const float weight = loss_scale / static_cast<float>(shape.mean_over());
  with_vectors(logits.dtype, {logits}, shape.stride, [&]<typename T, int kN>() {
    launch(cross_entropy_rows<T, kN>, grid_of(shape.rows), kThreads, stream, shape, targets, weight,
           logits.as<T>(), loss.rows);
  });
  launch(add_mean, grid_of(1), kThreads, stream, shape.rows, shape.mean_over(), loss.rows,
         loss.sum);
}

void move_loss(cudaStream_t stream, double* sum, float* to) {
  launch(move_sum, grid_of(1), 1, stream, sum, to);
}

}  // namespace zerorun::train::cuda
