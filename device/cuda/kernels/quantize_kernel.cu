#include <bit>
#include <type_traits>

#include "device/convert.h"
#include "device/cuda/kernels/kernels.h"
#include "device/cuda/kernels/launch.h"
#include "device/quantized.h"

namespace zerorun::cuda {

namespace {

// A warp has a block, and each of its threads neighbouring elements of it.
constexpr int kThreadsOfBlock = 32;
constexpr int kElements = kQuantizedBlock / kThreadsOfBlock;
constexpr unsigned kWholeWarp = 0xffffffffU;

// Codes of one thread, in whole words: blocks are multiples of four bytes.
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

template <int kBits, typename T>
__global__ void quantize_blocks(const T* src, unsigned char* dst, int64_t blocks, int64_t rows,
                                int64_t columns, T* lost, float beta) {
  using Format = Quantized<kBits>;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t block = thread / kThreadsOfBlock;
  const int lane = static_cast<int>(thread % kThreadsOfBlock);
  if (block >= blocks) return;  // a warp as a whole
  const int64_t first = block * kQuantizedBlock + int64_t{lane} * kElements;
  float values[kElements];
  uint32_t largest = 0;
  for (int k = 0; k < kElements; ++k) {
    values[k] = widen(src[first + k]);
    if (lost != nullptr) values[k] += widen(lost[first + k]);
    const uint32_t bits = Format::magnitude_bits(values[k]);
    if (bits > largest) largest = bits;
  }
  for (int other = kThreadsOfBlock / 2; other > 0; other /= 2) {
    const uint32_t theirs = __shfl_xor_sync(kWholeWarp, largest, other);
    if (theirs > largest) largest = theirs;
  }
  const float scale = Format::scale_of(largest);
  const float inverse = Format::inverse_of(scale);
  Word<kBits> word;
  for (int k = 0; k < kElements; ++k) {
    const int code = Format::encode(values[k], inverse);
    word.set(k, code);
    if (lost == nullptr) continue;
    const float now = values[k] - Format::decode(code, scale);
    const float next = scale == scale ? next_loss(widen(lost[first + k]), now, beta) : 0.0F;
    narrow(next, &lost[first + k]);
  }
  auto* const to = reinterpret_cast<uint32_t*>(dst + quantized_place(block, blocks, rows, columns) *
                                                         Format::kNbytes);
  if (lane == 0) to[0] = std::bit_cast<uint32_t>(scale);
  for (int i = 0; i < Word<kBits>::kCount; ++i) to[1 + lane * Word<kBits>::kCount + i] = word.at[i];
}

template <int kBits, typename T>
__global__ void dequantize_blocks(const unsigned char* src, T* dst, int64_t blocks, int parts,
                                  bool accumulate) {
  using Format = Quantized<kBits>;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t block = thread / kThreadsOfBlock;
  const int lane = static_cast<int>(thread % kThreadsOfBlock);
  if (block >= blocks) return;
  float sums[kElements] = {};
  for (int64_t part = 0; part < parts; ++part) {
    const auto* const from =
        reinterpret_cast<const uint32_t*>(src + (part * blocks + block) * Format::kNbytes);
    const float scale = std::bit_cast<float>(from[0]);
    Word<kBits> word;
    for (int i = 0; i < Word<kBits>::kCount; ++i) {
      word.at[i] = from[1 + lane * Word<kBits>::kCount + i];
    }
    for (int k = 0; k < kElements; ++k) sums[k] += Format::decode(word.get(k), scale);
  }
  T* const to = dst + block * kQuantizedBlock + int64_t{lane} * kElements;
  for (int k = 0; k < kElements; ++k) {
    narrow(accumulate ? widen(to[k]) + sums[k] : sums[k], &to[k]);
  }
}

}  // namespace

void quantize(cudaStream_t stream, TensorView src, TensorView dst, const Quantization& how) {
  if (src.empty()) return;
  const int64_t blocks = src.numel / kQuantizedBlock;
  with_floating(src.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(how.bits == 8 ? quantize_blocks<8, T> : quantize_blocks<4, T>,
           blocks_for(blocks * kThreadsOfBlock), kThreads, stream, src.as<const T>(),
           dst.as<unsigned char>(), blocks, how.rows, how.columns, how.lost.as<T>(), how.beta);
  });
}

void dequantize(cudaStream_t stream, TensorView src, TensorView dst, int bits, int parts,
                bool accumulate) {
  if (dst.empty()) return;
  const int64_t blocks = dst.numel / kQuantizedBlock;
  with_floating(dst.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(bits == 8 ? dequantize_blocks<8, T> : dequantize_blocks<4, T>,
           blocks_for(blocks * kThreadsOfBlock), kThreads, stream, src.as<const unsigned char>(),
           dst.as<T>(), blocks, parts, accumulate);
  });
}

}  // namespace zerorun::cuda
