
#include "device/convert.h"
#include "device/cuda/kernels/kernels.h"
#include "device/cuda/kernels/launch.h"
#include "device/cuda/kernels/staged_block.h"
#include "device/quantized.h"

namespace zerorun::cuda {

namespace {

// A warp handles one block; each of its threads has neighbouring elements.
constexpr int kThreadsOfBlock = 32;
constexpr int kElements = kQuantizedBlock / kThreadsOfBlock;

// The codes of a thread as whole words; blocks are multiples of four bytes.
template <int kBits>
struct Word {
  static constexpr int kCount = kElements * kBits / 32;
  uint32_t at[kCount] = {};

  __device__ void set(int index, int code) {
    const uint32_t bits = static_cast<uint32_t>(code) & ((1U << kBits) - 1);
    at[index * kBits / 32] |= bits << (index * kBits % 32);
  }
  __device__ int get(int index) const {
    const uint32_t shifted = at[index * kBits / 32] << (32 - kBits - index * kBits % 32);
    return static_cast<int32_t>(shifted) >> (32 - kBits);
  }
};

// The elements of a thread.
template <typename T, bool kAligned>
using Elements = Vector<T, kElements, kAligned>;

template <int kBits, bool kAligned, typename T>
__global__ void quantize_blocks(const T* src, unsigned char* dst, int64_t blocks, int64_t rows,
                                int64_t columns, float* lost, float beta) {
  using Format = Quantized<kBits>;
  constexpr int kThreadsOfGroup = Format::kGroup / kElements;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t block = thread / kThreadsOfBlock;
  const int lane = static_cast<int>(thread % kThreadsOfBlock);
  if (block >= blocks) return;  // true for all threads of a warp or none
  const int64_t first = block * kQuantizedBlock + int64_t{lane} * kElements;
  const auto elements = *reinterpret_cast<const Elements<T, kAligned>*>(src + first);
  auto* const to_lose = reinterpret_cast<Elements<float, kAligned>*>(lost + first);
  Elements<float, kAligned> losses = {};
  if (lost != nullptr) losses = *to_lose;
  float values[kElements];
  uint32_t largest = 0;
  for (int k = 0; k < kElements; ++k) {
    values[k] = widen(elements.at[k]);
    if (lost != nullptr) values[k] += losses.at[k];
    const uint32_t key = Format::key_of(values[k]);
    if (key > largest) largest = key;
  }
  for (int other = kThreadsOfGroup / 2; other > 0; other /= 2) {
    const uint32_t theirs = __shfl_xor_sync(kWholeWarp, largest, other);
    if (theirs > largest) largest = theirs;
  }
  const typename Format::Scale stored = Format::scale_of(largest);
  const float scale = widen(stored);
  const float inverse = Format::inverse_of(scale);
  Word<kBits> word;
  for (int k = 0; k < kElements; ++k) {
    const int code = Format::encode(values[k], inverse);
    word.set(k, code);
    const float now = values[k] - Format::decode(code, scale);
    losses.at[k] = scale == scale ? next_loss(losses.at[k], now, beta) : 0.0F;
  }
  if (lost != nullptr) *to_lose = losses;
  unsigned char* const to = dst + quantized_place(block, blocks, rows, columns) * Format::kNbytes;
  if (lane % kThreadsOfGroup == 0) {
    reinterpret_cast<typename Format::Scale*>(to)[lane / kThreadsOfGroup] = stored;
  }
  auto* const codes = reinterpret_cast<uint32_t*>(to + Format::kCodesBegin);
  for (int i = 0; i < Word<kBits>::kCount; ++i) codes[lane * Word<kBits>::kCount + i] = word.at[i];
}

// The part that is not quantized: Dequantization::exact.
struct Exact {
  View view;
  int part;  // -1: none
};

template <int kBits, bool kAligned, typename T>
__global__ void dequantize_blocks(const unsigned char* src, T* dst, int64_t blocks, int parts,
                                  bool accumulate, Exact exact) {
  using Format = Quantized<kBits>;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t block = thread / kThreadsOfBlock;
  const int lane = static_cast<int>(thread % kThreadsOfBlock);
  if (block >= blocks) return;
  const int64_t first = block * kQuantizedBlock + int64_t{lane} * kElements;
  float sums[kElements] = {};
  for (int part = 0; part < parts; ++part) {
    if (part == exact.part) {
      for (int k = 0; k < kElements; ++k) sums[k] += load_as_float(exact.view, first + k);
      continue;
    }
    const unsigned char* const from = src + (part * blocks + block) * Format::kNbytes;
    const float scale = widen(
        reinterpret_cast<const typename Format::Scale*>(from)[lane * kElements / Format::kGroup]);
    const auto* const codes = reinterpret_cast<const uint32_t*>(from + Format::kCodesBegin);
    Word<kBits> word;
    for (int i = 0; i < Word<kBits>::kCount; ++i) {
      word.at[i] = codes[lane * Word<kBits>::kCount + i];
    }
    for (int k = 0; k < kElements; ++k) sums[k] += Format::decode(word.get(k), scale);
  }
  auto* const to = reinterpret_cast<Elements<T, kAligned>*>(dst + first);
  Elements<T, kAligned> elements = {};
  if (accumulate) elements = *to;
  for (int k = 0; k < kElements; ++k) {
    narrow(accumulate ? widen(elements.at[k]) + sums[k] : sums[k], &elements.at[k]);
  }
  *to = elements;
}

}  // namespace

void quantize(cudaStream_t stream, TensorView src, TensorView dst, const Quantization& how) {
  if (src.empty()) return;
  const int64_t blocks = src.numel / kQuantizedBlock;
  with_floating(src.dtype, [&]<typename T>(T*) {
    const bool aligned = is_aligned(src.data, sizeof(Elements<T, true>)) &&
                         is_aligned(how.lost.data, sizeof(Elements<float, true>));
    const auto in_8_bits = aligned ? quantize_blocks<8, true, T> : quantize_blocks<8, false, T>;
    const auto in_4_bits = aligned ? quantize_blocks<4, true, T> : quantize_blocks<4, false, T>;
    launch(how.bits == 8 ? in_8_bits : in_4_bits, blocks_for(blocks * kThreadsOfBlock), kThreads,
           stream, src.as<const T>(), dst.as<unsigned char>(), blocks, how.rows, how.columns,
           how.lost.as<float>(), how.beta);
  });
}

void dequantize(cudaStream_t stream, TensorView src, TensorView dst, const Dequantization& how) {
  if (dst.empty()) return;
  const int64_t blocks = dst.numel / kQuantizedBlock;
  const Exact exact{how.exact, how.exact.data == nullptr ? -1 : how.exact_part};
  with_floating(dst.dtype, [&]<typename T>(T*) {
    const bool aligned = is_aligned(dst.data, sizeof(Elements<T, true>));
    const auto of_8_bits = aligned ? dequantize_blocks<8, true, T> : dequantize_blocks<8, false, T>;
    const auto of_4_bits = aligned ? dequantize_blocks<4, true, T> : dequantize_blocks<4, false, T>;
    launch(how.bits == 8 ? of_8_bits : of_4_bits, blocks_for(blocks * kThreadsOfBlock), kThreads,
           stream, src.as<const unsigned char>(), dst.as<T>(), blocks, how.parts, how.accumulate,
           exact);
  });
}

}  // namespace zerorun::cuda
