#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/exact_term.h"
#include "device/convert.h"
#include "device/cuda/kernels/kernels.h"
#include "device/cuda/kernels/launch.h"
#include "device/cuda/kernels/segments.h"
#include "device/newton_schulz.h"
#include "zerorun/exact_sum.h"

namespace zerorun::cuda {

namespace {

// dst[i] = map(src[i], dst[i]). The first `head` elements and those after the last whole vector are
// handled one by one, so that the vectors in between are aligned.
template <int N, typename Src, typename Dst, typename Map>
__global__ void map_elements(const Src* src, Dst* dst, int64_t head, int64_t vectors, int64_t count,
                             Map map) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < vectors) {
    const int64_t first = head + i * N;
    const auto in = load_vector<Src, N>(src + first);
    auto out = load_vector<Dst, N>(dst + first);
#pragma unroll
    for (int k = 0; k < N; ++k) map(in.at[k], out.at[k]);
    store_vector(out, dst + first);
    return;
  }
  const int64_t single = i - vectors;
  if (single >= count - vectors * N) return;
  const int64_t k = single < head ? single : single + vectors * N;
  map(src[k], dst[k]);
}

template <typename Src, typename Dst, typename Map>
void map(cudaStream_t stream, TensorView src, TensorView dst, Map map) {
  if (dst.empty()) return;
  constexpr int kVector = 16 / std::min(sizeof(Src), sizeof(Dst));
  const auto* from = src.as<const Src>();
  auto* to = dst.as<Dst>();
  int64_t head = 0;
  while (head < kVector && !is_aligned(to + head, sizeof(Dst) * kVector)) ++head;
  const bool aligned = head < std::min<int64_t>(kVector, dst.numel) &&
                       is_aligned(from + head, sizeof(Src) * kVector);
  if (!aligned) head = 0;
  const int64_t vectors = aligned ? (dst.numel - head) / kVector : 0;
  launch(map_elements<kVector, Src, Dst, Map>, blocks_for(vectors + dst.numel - vectors * kVector),
         kThreads, stream, from, to, head, vectors, dst.numel, map);
}

struct Convert {
  template <typename Src, typename Dst>
  __device__ void operator()(Src from, Dst& to) const {
    narrow(widen(from), &to);
  }
};

struct Accumulate {
  template <typename Src, typename Dst>
  __device__ void operator()(Src from, Dst& to) const {
    narrow(widen(to) + widen(from), &to);
  }
  __device__ void operator()(int64_t from, int64_t& to) const {  // wraps
    to = static_cast<int64_t>(static_cast<uint64_t>(to) + static_cast<uint64_t>(from));
  }
};

// A TensorCopy as a kernel's parameter.
struct CopySegment {
  explicit CopySegment(const TensorCopy& copy)
      : src(copy.src.data), dst(copy.dst.data), numel(copy.dst.numel), add(copy.accumulate) {}
  CopySegment() = default;

  const void* src = nullptr;
  void* dst = nullptr;
  int64_t numel = 0;
  bool add = false;
};
using CopySegments = Segments<CopySegment>;

template <typename Src, typename Dst>
__device__ inline void copy_element(bool add, Src from, Dst& to) {
  if (add) {
    Accumulate{}(from, to);
  } else if constexpr (std::is_same_v<Src, Dst>) {
    to = from;
  } else {
    Convert{}(from, to);
  }
}

template <typename Src, typename Dst>
__global__ void copy_tensors(const __grid_constant__ CopySegments segments) {
  constexpr int kVector = 16 / std::min(sizeof(Src), sizeof(Dst));
  const auto place = segments.place();
  const CopySegment& segment = segments.at[place.segment];
  const auto* const src = static_cast<const Src*>(segment.src);
  auto* const dst = static_cast<Dst*>(segment.dst);
  const int64_t first = int64_t{place.block} * blockDim.x + threadIdx.x;
  const int64_t stride = int64_t{place.blocks} * blockDim.x;
  int64_t done = 0;
  if (is_aligned(src, kVector * sizeof(Src)) && is_aligned(dst, kVector * sizeof(Dst))) {
    const int64_t vectors = segment.numel / kVector;
    for (int64_t i = first; i < vectors; i += stride) {
      const auto in = load_vector<Src, kVector>(src + i * kVector);
      Vector<Dst, kVector> out = {};
      if (segment.add) out = load_vector<Dst, kVector>(dst + i * kVector);
#pragma unroll
      for (int k = 0; k < kVector; ++k) copy_element(segment.add, in.at[k], out.at[k]);
      store_vector(out, dst + i * kVector);
    }
    done = vectors * kVector;
  }
  for (int64_t i = done + first; i < segment.numel; i += stride) {
    copy_element(segment.add, src[i], dst[i]);
  }
}

struct Extreme {
  bool larger;
  template <typename T>
  __device__ void operator()(T from, T& to) const {
    if (larger ? from > to : from < to) to = from;
  }
};

struct Scale {
  float factor;
  template <typename T>
  __device__ void operator()(T from, T& to) const {
    narrow(widen(from) * factor, &to);
  }
};

struct Normalize {
  const int64_t* words;
  __device__ void operator()(float from, float& to) const {
    double sum = 0.0;
    for (int i = ExactSum::kDigits - 1; i >= 0; --i) {
      sum += static_cast<double>(words[i]) *
             ldexp(1.0, ExactSum::kLowestExponent + i * ExactTerm::kDigitBits);
    }
    to = from * static_cast<float>(1.0 / (sqrt(sum) + kNewtonSchulzEps));
  }
};

template <typename T>
struct Set {
  T value;
  __device__ void operator()(T /*from*/, T& to) const { to = value; }
};

template <typename T>
void set(cudaStream_t stream, TensorView dst, T value) {
  map<T, T>(stream, dst, dst, Set<T>{value});
}

template <typename Map>
void map_floating(cudaStream_t stream, TensorView src, TensorView dst, Map each) {
  with_floating(src.dtype, [&]<typename Src>(Src*) {
    with_floating(dst.dtype, [&]<typename Dst>(Dst*) { map<Src, Dst>(stream, src, dst, each); });
  });
}

}  // namespace

void fill(cudaStream_t stream, TensorView dst, float value) {
  if (dst.empty()) return;
  if (std::bit_cast<uint32_t>(value) == 0) {
    return check_cuda(cudaMemsetAsync(dst.data, 0, dst.nbytes(), stream), "cudaMemsetAsync");
  }
  switch (dst.dtype) {
    case DType::fp32:
      return set(stream, dst, value);
    case DType::bf16:
      return set(stream, dst, to_bf16(value));
    case DType::fp16:
      return set(stream, dst, to_fp16(value));
    case DType::int64:
      return set(stream, dst, static_cast<int64_t>(value));
    case DType::uint8:
      return set(stream, dst, static_cast<uint8_t>(value));
  }
}

void cast(cudaStream_t stream, TensorView src, TensorView dst) {
  if (src.empty() || (src.dtype == dst.dtype && src.data == dst.data)) return;
  if (src.dtype == dst.dtype) {
    return check_cuda(cudaMemcpyAsync(dst.data, src.data, src.nbytes(), cudaMemcpyDefault, stream),
                      "cudaMemcpyAsync on the device");
  }
  map_floating(stream, src, dst, Convert{});
}

void add(cudaStream_t stream, TensorView src, TensorView dst) {
  if (src.dtype == DType::int64) {
    return map<int64_t, int64_t>(stream, src, dst, Accumulate{});
  }
  map_floating(stream, src, dst, Accumulate{});
}

void copy(cudaStream_t stream, std::span<const TensorCopy> copies) {
  const auto blocks = [](const CopySegment& segment) {
    constexpr int64_t kElements = 8;      // per thread, approximately
    constexpr int64_t kMaxBlocks = 2048;  // enough for any GPU
    return std::clamp<int64_t>(segment.numel / (kElements * kThreads), 1, kMaxBlocks);
  };
  for (size_t begin = 0; begin < copies.size();) {
    const DType from = copies[begin].src.dtype;
    const DType to = copies[begin].dst.dtype;
    std::vector<CopySegment> alike;
    for (; begin < copies.size() && copies[begin].src.dtype == from; ++begin) {
      if (copies[begin].dst.dtype != to) break;
      alike.emplace_back(copies[begin]);
    }
    with_floating(from, [&]<typename Src>(Src*) {
      with_floating(to, [&]<typename Dst>(Dst*) {
        for_each_launch<CopySegments>(
            std::span<const CopySegment>(alike), blocks, [&](const CopySegments& some) {
              launch(copy_tensors<Src, Dst>, some.blocks(), kThreads, stream, some);
            });
      });
    });
  }
}

void extreme(cudaStream_t stream, TensorView src, TensorView dst, bool larger) {
  if (src.dtype == DType::int64) return map<int64_t, int64_t>(stream, src, dst, Extreme{larger});
  map<float, float>(stream, src, dst, Extreme{larger});
}

void scale(cudaStream_t stream, TensorView dst, float factor) {
  with_floating(dst.dtype, [&]<typename T>(T*) { map<T, T>(stream, dst, dst, Scale{factor}); });
}

void normalize(cudaStream_t stream, TensorView dst, TensorView sum) {
  map<float, float>(stream, dst, dst, Normalize{sum.as<const int64_t>()});
}

}  // namespace zerorun::cuda
