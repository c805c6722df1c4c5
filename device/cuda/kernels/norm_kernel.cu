#include <algorithm>

#include "core/exact_term.h"
#include "device/convert.h"
#include "device/cuda/kernels/kernels.h"
#include "device/cuda/kernels/launch.h"
#include "device/cuda/kernels/segments.h"
#include "device/host_device.h"
#include "zerorun/exact_sum.h"

namespace zerorun::cuda {

namespace {

constexpr int kRow = 16;                  // virtual lanes; see device/cpu/norm_kernel.cc
constexpr int kRows = kNormBlock / kRow;  // additions per lane
constexpr int kThreadsOfChunk = 4;        // each has four lanes
constexpr int kChunksOfBlock = kThreads / kThreadsOfChunk;

ZR_HOST_DEVICE inline int64_t chunks_of(int64_t numel) {
  return (numel + kNormBlock - 1) / kNormBlock;
}

__device__ inline void add_square(float element, double& lane) {
  const double value = element;
  lane += value * value;  // exact: fusing it changes nothing
}

// Sums lanes 4t to 4t+3 of a chunk's squares in the order of rows.
template <bool kAligned, typename T>
__device__ void add_squares(const T* chunk, int64_t count, int thread, double* lanes) {
  if (kAligned && count == kNormBlock) {
    Vector<T, 4> rows[kRows];  // all loads are issued before the first use
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

// Returns the chunk's sum to each of its threads; lanes are added as a binary tree.
__device__ inline double combine(double* lanes) {
  for (int k = 0; k < 4; ++k) lanes[k] += __shfl_xor_sync(kWholeWarp, lanes[k], 2);
  for (int k = 0; k < 4; ++k) lanes[k] += __shfl_xor_sync(kWholeWarp, lanes[k], 1);
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

// Sums of the chunks of each four threads of the block, one column for each four threads: words of
// an ExactSum to which only these threads add, so that no addition is atomic. Rows are longer than
// that, so that neighbouring digits are in different memory banks.
using Columns = uint64_t[ExactSum::kWords][kChunksOfBlock + 8];

// Threads 0 to 2 of the four add one digit of the chunk's sum each.
__device__ inline void add_term(double term, int thread, Columns& columns) {
  const int column = static_cast<int>(threadIdx.x) / kThreadsOfChunk;
  if (!ExactTerm::is_finite(term)) {
    if (thread == 0) ++columns[ExactSum::kDigits][column];
  } else if (term != 0.0 && thread < 3) {
    const ExactTerm split = ExactTerm::of(term);
    // Selected by comparison: an index known only at run time would move the parts to memory.
    const uint32_t part = thread == 0   ? split.parts[0]
                          : thread == 1 ? split.parts[1]
                                        : split.parts[2];
    columns[split.digit + thread][column] += part;
  }
}

template <typename T>
using SquaresSegments = Segments<SquaresSegment, const T*, int64_t*>;

template <bool kAligned, typename T>
__global__ void squares(const __grid_constant__ SquaresSegments<T> segments, const T* all,
                        int64_t* sums) {
  __shared__ Columns columns;
  constexpr int kCells = ExactSum::kWords * kChunksOfBlock;
  for (int i = static_cast<int>(threadIdx.x); i < kCells; i += kThreads) {
    columns[i / kChunksOfBlock][i % kChunksOfBlock] = 0;
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x) % kThreadsOfChunk;
  const auto place = segments.place();
  const SquaresSegment& segment = segments.at[place.segment];
  const T* const values = all + segment.begin;
  const int64_t numel = segment.numel;
  const int64_t stride = int64_t{place.blocks} * kChunksOfBlock;
  const int64_t block_first = int64_t{place.block} * kChunksOfBlock;
  const int64_t first = block_first + threadIdx.x / kThreadsOfChunk;
  // All threads of a warp make the same number of rounds, because they exchange values.
  const int64_t rounds = (chunks_of(numel) - block_first + stride - 1) / stride;
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t begin = (first + round * stride) * kNormBlock;
    const int64_t count =
        begin < numel ? (numel - begin < kNormBlock ? numel - begin : kNormBlock) : 0;
    double lanes[4] = {};
    add_squares<kAligned>(values + (count > 0 ? begin : 0), count, thread, lanes);
    const double term = combine(lanes);
    if (count > 0) add_term(term, thread, columns);
    __syncwarp();  // other threads add the next chunk's digits to the same words
  }
  __syncthreads();
  const int word = static_cast<int>(threadIdx.x);
  if (word >= ExactSum::kWords) return;
  uint64_t total = 0;
  for (int i = 0; i < kChunksOfBlock; ++i) total += columns[word][i];
  if (total != 0) {
    int64_t* const sum = sums + segment.sum * ExactSum::kWords;
    atomicAdd(reinterpret_cast<unsigned long long*>(sum + word),
              static_cast<unsigned long long>(total));
  }
}

int64_t blocks_of(const SquaresSegment& segment) {
  constexpr int64_t kMaxBlocks = 2048;  // enough for any GPU
  return std::min((chunks_of(segment.numel) + kChunksOfBlock - 1) / kChunksOfBlock, kMaxBlocks);
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
  with_floating(src.dtype, [&]<typename T>(T*) {
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
