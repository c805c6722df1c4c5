#include <array>
#include <type_traits>

#include "amp/stochastic_rounding.h"
#include "device/block8.h"
#include "device/convert.h"
#include "device/cuda/kernels/kernels.h"
#include "device/cuda/kernels/launch.h"
#include "device/cuda/kernels/segments.h"
#include "device/cuda/kernels/vector.h"
#include "device/update_rules.h"

namespace zerorun::cuda {

namespace {

// Correctly rounded and never fused: the bits of the CPU.
struct DeviceMath {
  __device__ float set(float value) const { return value; }
  __device__ float add(float a, float b) const { return __fadd_rn(a, b); }
  __device__ float sub(float a, float b) const { return __fsub_rn(a, b); }
  __device__ float mul(float a, float b) const { return __fmul_rn(a, b); }
  __device__ float div(float a, float b) const { return __fdiv_rn(a, b); }
  __device__ float sqrt(float a) const { return __fsqrt_rn(a); }
  __device__ float sign(float a) const { return fabsf(a) > 0.0F ? copysignf(1.0F, a) : a; }
};

// A tensor as kernels take it.
struct View {
  View() = default;
  View(const TensorView& view) : data(view.data), dtype(view.dtype) {}  // NOLINT: a conversion

  template <typename T>
  __device__ T* as() const {
    return static_cast<T*>(data);
  }

  void* data = nullptr;
  DType dtype = DType::fp32;
};

// dtypes are looked at per access: all threads take the same branch, and there is one kernel per
// rule in the place of one for every combination.
__device__ inline float load_as_float(const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::bf16:
      return widen(view.as<Bf16>()[i]);
    case DType::fp16:
      return widen(view.as<Fp16>()[i]);
    default:
      return view.as<float>()[i];
  }
}

__device__ inline void store_nearest(float value, const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::bf16:
      return narrow(value, view.as<Bf16>() + i);
    case DType::fp16:
      return narrow(value, view.as<Fp16>() + i);
    default:
      view.as<float>()[i] = value;
  }
}

constexpr int kVector = 4;
using Floats = Vector<float, kVector>;

template <typename T>
__device__ Floats load_widened(const View& view, int64_t i) {
  const auto vector = load_vector<T, kVector>(view.as<T>() + i);
  Floats floats;
#pragma unroll
  for (int k = 0; k < kVector; ++k) floats.at[k] = widen(vector.at[k]);
  return floats;
}

__device__ inline Floats load_floats(const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::bf16:
      return load_widened<Bf16>(view, i);
    case DType::fp16:
      return load_widened<Fp16>(view, i);
    default:
      return load_vector<float, kVector>(view.as<float>() + i);
  }
}

template <typename T>
__device__ void store_narrowed(const Floats& floats, const View& view, int64_t i) {
  Vector<T, kVector> vector;
#pragma unroll
  for (int k = 0; k < kVector; ++k) narrow(floats.at[k], &vector.at[k]);
  store_vector(vector, view.as<T>() + i);
}

__device__ inline void store_floats(const Floats& floats, const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::bf16:
      return store_narrowed<Bf16>(floats, view, i);
    case DType::fp16:
      return store_narrowed<Fp16>(floats, view, i);
    default:
      store_vector(floats, view.as<float>() + i);
  }
}

// The part of UpdateTensors that a kernel gets.
struct Tensors {
  View master;
  View grad;
  View param;
  View states[2];
  View scales[2];
  const float* decision = nullptr;      // the gradient's factor, and whether there is a step at all
  const float* trust_ratios = nullptr;  // by parameter
  bool in_place = false;                // the parameter is the master
};

// Sets what the tensors say about the segment's rule; returns false if the step is skipped.
template <class Rule>
__device__ bool complete_rule(const Tensors& t, int64_t parameter, Rule& rule) {
  if constexpr (Rule::kHasTrustRatio) {
    if (t.trust_ratios != nullptr) rule.lr *= t.trust_ratios[parameter];
  }
  if (t.decision == nullptr) return true;
  if constexpr (Rule::kReadsGrad) rule.grad_scale = t.decision[0];
  return t.decision[1] != 0.0F;
}

// The part of an UpdateSegment that a kernel gets.
template <class Rule>
struct RuleSegment {
  RuleSegment() = default;
  explicit RuleSegment(const UpdateSegment& segment)
      : rule(segment.scalars),
        begin(segment.begin),
        numel(segment.numel),
        parameter(segment.parameter),
        element(segment.element) {}

  Rule rule;
  int64_t begin = 0;
  int64_t numel = 0;
  int64_t parameter = 0;
  int64_t element = 0;
};
template <class Rule>
using RuleSegments = Segments<RuleSegment<Rule>, Tensors, StochasticRounding>;

// The first and last elements of a segment, which fill no vector.
template <class Rule>
__device__ void update_elements(const Rule& rule, const Tensors& t, int64_t i, int64_t end) {
  const DeviceMath math;
  for (; i < end; ++i) {
    float none = 0.0F;
    float& state0 = Rule::kStates > 0 ? t.states[0].as<float>()[i] : none;
    float& state1 = Rule::kStates > 1 ? t.states[1].as<float>()[i] : none;
    const float grad = Rule::kReadsGrad ? load_as_float(t.grad, i) : 0.0F;
    float master = t.master.as<float>()[i];
    const float result = rule(math, grad, master, state0, state1);
    if (Rule::kSteps) t.master.as<float>()[i] = master;
    if (!t.in_place) store_nearest(result, t.param, i);
  }
}

// Master and states in fp32, all tensors aligned: kVector elements a thread, one pass over memory.
template <class Rule>
__global__ void update_vectors(const __grid_constant__ RuleSegments<Rule> segments, Tensors t) {
  const auto place = segments.place();
  const RuleSegment<Rule>& segment = segments.at[place.segment];
  Rule rule = segment.rule;
  if (!complete_rule(t, segment.parameter, rule)) return;
  const int64_t end = segment.begin + segment.numel;
  // Vectors are those of the tensors, wherever segments begin and end.
  const int64_t vector = segment.begin / kVector + int64_t{place.block} * blockDim.x + threadIdx.x;
  const int64_t i = vector * kVector;
  if (i >= end) return;
  if (i < segment.begin || i + kVector > end) {
    const int64_t first = i < segment.begin ? segment.begin : i;
    return update_elements(rule, t, first, i + kVector < end ? i + kVector : end);
  }
  const DeviceMath math;
  auto* const masters = t.master.as<float>() + i;
  Floats master = load_vector<float, kVector>(masters);
  Floats states[2] = {};
  Floats grad = {};
#pragma unroll
  for (int k = 0; k < Rule::kStates; ++k) {
    states[k] = load_vector<float, kVector>(t.states[k].as<float>() + i);
  }
  if constexpr (Rule::kReadsGrad) grad = load_floats(t.grad, i);
  Floats result;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    result.at[k] = rule(math, grad.at[k], master.at[k], states[0].at[k], states[1].at[k]);
  }
  if constexpr (Rule::kSteps) store_vector(master, masters);
#pragma unroll
  for (int k = 0; Rule::kWritesStates && k < Rule::kStates; ++k) {
    store_vector(states[k], t.states[k].as<float>() + i);
  }
  if (!t.in_place) store_floats(result, t.param, i);
}

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffU;
// A warp has kStateBlock elements: two groups of random numbers, of which each thread has a column.
constexpr int kRows = static_cast<int>(StochasticRounding::kGroup / StochasticRounding::kColumns);
constexpr int kGroupsOfBlock = static_cast<int>(kStateBlock / StochasticRounding::kGroup);
static_assert(kGroupsOfBlock * StochasticRounding::kColumns == kWarp && kRows == 8);

// One warp's block of one tensor: thread t has kRows elements, kColumns apart.
class Staged {
 public:
  __device__ Staged(int64_t begin, int64_t end, int lane)
      : begin_(begin),
        end_(end),
        group_(lane / static_cast<int>(StochasticRounding::kColumns)),
        column_(lane % static_cast<int>(StochasticRounding::kColumns)) {}

  __device__ int64_t at(int row) const {
    return begin_ + group_ * StochasticRounding::kGroup + row * StochasticRounding::kColumns +
           column_;
  }
  __device__ bool has(int row) const { return at(row) < end_; }

  __device__ void load(const View& view, const View& scales, bool is_signed, float* values) const {
    const bool coded = view.dtype == DType::uint8;
    const float scale = coded ? scales.as<float>()[begin_ / kStateBlock] : 0.0F;
    for (int row = 0; row < kRows; ++row) {
      values[row] = !has(row) ? 0.0F
                    : coded   ? Block8{is_signed}.decode(view.as<uint8_t>()[at(row)], scale)
                              : load_as_float(view, at(row));
    }
  }

  // All threads of the warp. `element`: of the parameter, at `begin`.
  __device__ void store(const float* values, const View& view, const View& scales, bool is_signed,
                        const StochasticRounding& rounding, int64_t element) const {
    switch (view.dtype) {
      case DType::uint8:
        return encode(values, view, scales, Block8{is_signed});
      case DType::bf16:
      case DType::fp16:
        return round(values, view, rounding, element);
      default:
        for (int row = 0; row < kRows; ++row) {
          if (has(row)) view.as<float>()[at(row)] = values[row];
        }
    }
  }

 private:
  __device__ void encode(const float* values, const View& view, const View& scales,
                         Block8 code) const {
    uint32_t largest = 0;
    for (int row = 0; row < kRows; ++row) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(values[row]) & 0x7fffffffU;
      largest = magnitude > largest ? magnitude : largest;
    }
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const uint32_t other = __shfl_xor_sync(kWholeWarp, largest, distance);
      largest = other > largest ? other : largest;
    }
    const float scale = Block8::scale_of_magnitude(largest);
    if (group_ == 0 && column_ == 0) scales.as<float>()[begin_ / kStateBlock] = scale;
    for (int row = 0; row < kRows; ++row) {
      if (has(row)) view.as<uint8_t>()[at(row)] = code.encode(values[row], scale);
    }
  }

  __device__ void round(const float* values, const View& view, const StochasticRounding& rounding,
                        int64_t element) const {
    Philox::Block counter = rounding.counter(element / StochasticRounding::kGroup + group_);
    counter[0] += static_cast<uint32_t>(column_);
    const Philox::Block words = Philox::block(counter, rounding.key());
    for (int row = 0; row < kRows; ++row) {
      if (!has(row)) continue;
      const uint32_t word = words[static_cast<size_t>(row / 2)];
      const uint32_t random = row % 2 == 0 ? word & 0xffffU : word >> 16;
      if (view.dtype == DType::bf16) {
        view.as<Bf16>()[at(row)] = round_to_bf16(values[row], random);
      } else {
        view.as<Fp16>()[at(row)] = round_to_fp16(values[row], random);
      }
    }
  }

  int64_t begin_;
  int64_t end_;
  int group_;
  int column_;
};

// Blocks of a multiprocessor, at least: two states of eight rows leave no room for a fourth.
template <class Rule>
constexpr int kResidentBlocks = Rule::kStates > 1 ? 3 : 4;

// The same update for any dtypes and alignment: one warp per kStateBlock elements of a segment.
template <class Rule>
__global__ void __launch_bounds__(kThreads, kResidentBlocks<Rule>)
    update_blocks(const __grid_constant__ RuleSegments<Rule> segments, Tensors t,
                  StochasticRounding rounding) {
  const auto place = segments.place();
  const RuleSegment<Rule>& segment = segments.at[place.segment];
  const int64_t end = segment.begin + segment.numel;
  const int64_t warp = (int64_t{place.block} * blockDim.x + threadIdx.x) / kWarp;
  const int64_t begin = segment.begin + warp * kStateBlock;
  if (begin >= end) return;  // the whole warp
  const Staged staged(begin, end, static_cast<int>(threadIdx.x) % kWarp);
  Rule rule = segment.rule;
  if (!complete_rule(t, segment.parameter, rule)) return;  // the whole grid
  const DeviceMath math;
  float master[kRows];
  float states[2][kRows] = {};
  float grad[kRows] = {};
  staged.load(t.master, {}, true, master);
#pragma unroll
  for (int k = 0; k < Rule::kStates; ++k) staged.load(t.states[k], t.scales[k], k == 0, states[k]);
  if constexpr (Rule::kReadsGrad) staged.load(t.grad, {}, true, grad);
  for (int row = 0; row < kRows; ++row) {
    if (!staged.has(row)) continue;
    const float result = rule(math, grad[row], master[row], states[0][row], states[1][row]);
    if (!t.in_place) store_nearest(result, t.param, staged.at(row));
  }
  rounding.parameter = segment.parameter;
  const int64_t element = segment.element + warp * kStateBlock;
  if constexpr (Rule::kSteps) staged.store(master, t.master, {}, true, rounding, element);
#pragma unroll
  for (int k = 0; Rule::kWritesStates && k < Rule::kStates; ++k) {
    rounding.tensor = static_cast<uint32_t>(k) + 1;
    staged.store(states[k], t.states[k], t.scales[k], k == 0, rounding, element);
  }
}

bool takes_vectors(const TensorView& view) {
  return view.data == nullptr || is_aligned(view.data, kVector * size_of(view.dtype));
}

bool is_fp32(const TensorView& view) { return view.dtype == DType::fp32; }

int64_t blocks_of(int64_t threads) { return (threads + kThreads - 1) / kThreads; }

template <class Rule>
void update_with(cudaStream_t stream, const UpdateTensors& from,
                 std::span<const UpdateSegment> all) {
  using Some = RuleSegments<Rule>;
  const auto& states = from.states;
  const Tensors t = {.master = from.master,
                     .grad = from.grad,
                     .param = from.param,
                     .states = {states[0], states[1]},
                     .scales = {from.scales[0], from.scales[1]},
                     .decision = from.decision.as<const float>(),
                     .trust_ratios = from.trust_ratios.as<const float>(),
                     .in_place = from.param.data == from.master.data};
  const bool vectors = is_fp32(from.master) && is_fp32(states[0]) && is_fp32(states[1]) &&
                       takes_vectors(from.master) && takes_vectors(states[0]) &&
                       takes_vectors(states[1]) && takes_vectors(from.grad) &&
                       takes_vectors(from.param);
  if (vectors) {
    const auto blocks = [](const UpdateSegment& s) {
      const int64_t end = s.begin + s.numel;
      return blocks_of((end + kVector - 1) / kVector - s.begin / kVector);
    };
    return for_each_launch<Some>(all, blocks, [&](const Some& some) {
      launch(update_vectors<Rule>, some.blocks(), kThreads, stream, some, t);
    });
  }
  const UpdateScalars& scalars = all.front().scalars;
  const StochasticRounding rounding{scalars.seed, scalars.step};
  const auto blocks = [](const UpdateSegment& s) {
    return blocks_of((s.numel + kStateBlock - 1) / kStateBlock * kWarp);
  };
  for_each_launch<Some>(all, blocks, [&](const Some& some) {
    launch(update_blocks<Rule>, some.blocks(), kThreads, stream, some, t, rounding);
  });
}

}  // namespace

void update(cudaStream_t stream, const UpdateTensors& tensors,
            std::span<const UpdateSegment> segments) {
  if (segments.empty()) return;
  with_rule(segments.front().scalars.rule, tensors.states[0].data != nullptr, [&](auto* type) {
    update_with<std::remove_pointer_t<decltype(type)>>(stream, tensors, segments);
  });
}

}  // namespace zerorun::cuda
