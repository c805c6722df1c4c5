#include <algorithm>
#include <type_traits>

#include "core/exact_term.h"
#include "device/convert.h"
#include "device/cuda/kernels/kernels.h"
#include "device/cuda/kernels/launch.h"
#include "device/cuda/kernels/segments.h"
#include "device/cuda/kernels/vector.h"
#include "device/host_device.h"
#include "zerorun/exact_sum.h"

namespace zerorun::cuda {

namespace {

constexpr int kRow = 16;                  // virtual lanes; see device/cpu/norm_kernel.cc
constexpr int kRows = kNormBlock / kRow;  // additions of a lane
constexpr int kThreadsOfChunk = 4;        // each has four lanes
constexpr int kChunksOfBlock = kThreads / kThreadsOfChunk;
// A digit is kept in two halves of 16 bits, each in a 32-bit word (shared memory adds those in
// hardware), which hold the sum of this many terms.
constexpr int64_t kMaxChunksOfBlock = 65536;
constexpr unsigned kWholeWarp = 0xffffffffU;

ZR_HOST_DEVICE inline int64_t chunks_of(int64_t numel) {
  return (numel + kNormBlock - 1) / kNormBlock;
}

__device__ inline void add_square(float element, double& lane) {
  const double value = element;
  lane += value * value;  // exact: fusing it changes nothing
}

// Lanes 4t to 4t+3 of a chunk's squares, added in order of the rows.
template <bool kAligned, typename T>
__device__ void add_squares(const T* chunk, int64_t count, int thread, double* lanes) {
  if (kAligned && count == kNormBlock) {
    Vector<T, 4> rows[kRows];  // all on their way before the first is needed
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      rows[row] = load_vector<T, 4>(chunk + row * kRow + 4 * thread);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int k = 0; k < 4; ++k) add_square(widen(rows[row].at[k]), lanes[k]);
    }
    return;
  }
  for (int row = 0; row < kRows; ++row) {
    const int first = row * kRow + 4 * thread;
    for (int k = 0; k < 4 && first + k < count; ++k) add_square(widen(chunk[first + k]), lanes[k]);
  }
}

// The chunk's sum, in every one of its threads: lanes as a binary tree.
__device__ inline double combine(double* lanes) {
  for (int k = 0; k < 4; ++k) lanes[k] += __shfl_xor_sync(kWholeWarp, lanes[k], 2);
  for (int k = 0; k < 4; ++k) lanes[k] += __shfl_xor_sync(kWholeWarp, lanes[k], 1);
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

__device__ inline void add_term(double term, uint32_t (*halves)[2]) {
  if (!ExactTerm::is_finite(term)) {
    atomicAdd(&halves[ExactSum::kDigits][0], 1U);
  } else if (term != 0.0) {
    const ExactTerm split = ExactTerm::of(term);
    for (int i = 0; i < 3; ++i) {
      const uint32_t part = split.parts[i];
      if (part == 0) continue;
      atomicAdd(&halves[split.digit + i][0], part & 0xffffU);
      atomicAdd(&halves[split.digit + i][1], part >> 16);
    }
  }
}

template <typename T>
using SquaresSegments = Segments<SquaresSegment, const T*, int64_t*>;

template <bool kAligned, typename T>
__global__ void squares(const __grid_constant__ SquaresSegments<T> segments, const T* all,
                        int64_t* sums) {
  __shared__ uint32_t halves[ExactSum::kWords][2];
  const int word = static_cast<int>(threadIdx.x);
  if (word < ExactSum::kWords) halves[word][0] = halves[word][1] = 0;
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x) % kThreadsOfChunk;
  const auto place = segments.place();
  const SquaresSegment& segment = segments.at[place.segment];
  const T* const values = all + segment.begin;
  const int64_t numel = segment.numel;
  const int64_t stride = int64_t{place.blocks} * kChunksOfBlock;
  const int64_t block_first = int64_t{place.block} * kChunksOfBlock;
  const int64_t first = block_first + threadIdx.x / kThreadsOfChunk;
  // The same number of rounds for all threads of a warp, which exchange values.
  const int64_t rounds = (chunks_of(numel) - block_first + stride - 1) / stride;
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t begin = (first + round * stride) * kNormBlock;
    const int64_t count =
        begin < numel ? (numel - begin < kNormBlock ? numel - begin : kNormBlock) : 0;
    double lanes[4] = {};
    add_squares<kAligned>(values + (count > 0 ? begin : 0), count, thread, lanes);
    const double term = combine(lanes);
    if (thread == 0 && count > 0) add_term(term, halves);
  }
  __syncthreads();
  if (word >= ExactSum::kWords) return;
  const uint64_t total = uint64_t{halves[word][0]} + (uint64_t{halves[word][1]} << 16);
  if (total != 0) {
    int64_t* const sum = sums + segment.sum * ExactSum::kWords;
    atomicAdd(reinterpret_cast<unsigned long long*>(sum + word),
              static_cast<unsigned long long>(total));
  }
}

// Thread blocks of a segment.
int64_t blocks_of(const SquaresSegment& segment) {
  constexpr int64_t kBlocks = 2048;  // enough for any GPU
  const int64_t chunks = chunks_of(segment.numel);
  const int64_t most =
      std::max<int64_t>(kBlocks, (chunks + kMaxChunksOfBlock - 1) / kMaxChunksOfBlock);
  return std::min((chunks + kChunksOfBlock - 1) / kChunksOfBlock, most);
}

template <bool kAligned, typename T>
void add_squares_of(cudaStream_t stream, const T* all, std::span<const SquaresSegment> segments,
                    int64_t* sums) {
  using Some = SquaresSegments<T>;
  for_each_launch<Some>(segments, blocks_of, [&](const Some& some) {
    launch(squares<kAligned, T>, some.blocks(), kThreads, stream, some, all, sums);
  });
}

}  // namespace

void sum_of_squares(cudaStream_t stream, TensorView src, std::span<const SquaresSegment> segments,
                    TensorView sums) {
  with_floating(src.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto aligned = [&](const SquaresSegment& segment) {
      return is_aligned(src.as<T>() + segment.begin, 4 * sizeof(T));
    };
    const auto add = std::all_of(segments.begin(), segments.end(), aligned)
                         ? add_squares_of<true, T>
                         : add_squares_of<false, T>;
    add(stream, src.as<const T>(), segments, sums.as<int64_t>());
  });
}

}  // namespace zerorun::cuda
