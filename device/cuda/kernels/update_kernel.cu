
#include "amp/stochastic_rounding.h"
#include "device/cuda/kernels/kernels.h"
#include "device/cuda/kernels/launch.h"
#include "device/cuda/kernels/segments.h"
#include "device/cuda/kernels/staged_block.h"
#include "device/update_rules.h"

namespace zerorun::cuda {

namespace {

// Correctly rounded operations, which are never fused, give the same bits as on the CPU.
struct DeviceMath {
  __device__ float set(float value) const { return value; }
  __device__ float add(float a, float b) const { return __fadd_rn(a, b); }
  __device__ float sub(float a, float b) const { return __fsub_rn(a, b); }
  __device__ float mul(float a, float b) const { return __fmul_rn(a, b); }
  __device__ float div(float a, float b) const { return __fdiv_rn(a, b); }
  __device__ float sqrt(float a) const { return __fsqrt_rn(a); }
  __device__ float sign(float a) const { return fabsf(a) > 0.0F ? copysignf(1.0F, a) : a; }
};

// The part of UpdateTensors that a kernel gets.
struct Tensors {
  View master;
  View grad;
  View param;
  View states[2];
  View scales[2];
  const float* decision = nullptr;      // the gradient's factor; 1 if the step is applied
  const float* trust_ratios = nullptr;  // by parameter
  bool in_place = false;                // the parameter is the master
  bool param_is_buffer = false;         // see UpdateTensors
};

// Sets the scalars that are in device memory; returns false if the step is skipped.
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
using RuleSegments = Segments<RuleSegment<Rule>, Tensors, StochasticRounding, bool>;

// Writes the output of a skipped step.
template <class Rule>
__device__ void skip(const RuleSegments<Rule>& segments, const Tensors& t) {
  if (!t.param_is_buffer) return;
  const auto place = segments.place();
  const RuleSegment<Rule>& segment = segments.at[place.segment];
  const int64_t end = segment.begin + segment.numel;
  const int64_t first = segment.begin + int64_t{place.block} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < end; i += int64_t{place.blocks} * blockDim.x) {
    store_nearest(load_as_float(t.master, i), t.param, i);
  }
}

// Updates the first and last elements of a segment, which do not fill a vector.
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

// Updates aligned tensors with master and states in fp32: one pass over memory, kVector elements
// per thread.
template <class Rule>
__global__ void update_vectors(const __grid_constant__ RuleSegments<Rule> segments, Tensors t) {
  const auto place = segments.place();
  const RuleSegment<Rule>& segment = segments.at[place.segment];
  Rule rule = segment.rule;
  if (!complete_rule(t, segment.parameter, rule)) return skip(segments, t);
  const int64_t end = segment.begin + segment.numel;
  // Vectors are aligned in the tensors; segments may begin and end inside of one.
  const int64_t vector = segment.begin / kVector + int64_t{place.block} * blockDim.x + threadIdx.x;
  const int64_t i = vector * kVector;
  if (i >= end) return;
  if (i < segment.begin || i + kVector > end) {
    const int64_t first = i < segment.begin ? segment.begin : i;
    return update_elements(rule, t, first, i + kVector < end ? i + kVector : end);
  }
  const Slot slot{i, kVector, true};
  const DeviceMath math;
  Floats master = slot.load<float>(t.master);
  Floats states[2] = {};
  Floats grad = {};
#pragma unroll
  for (int k = 0; k < Rule::kStates; ++k) states[k] = slot.load<float>(t.states[k]);
  if constexpr (Rule::kReadsGrad) grad = load_floats(t.grad, slot);
  Floats result;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    result.at[k] = rule(math, grad.at[k], master.at[k], states[0].at[k], states[1].at[k]);
  }
  if constexpr (Rule::kSteps) slot.store(master, t.master);
#pragma unroll
  for (int k = 0; Rule::kWritesStates && k < Rule::kStates; ++k) slot.store(states[k], t.states[k]);
  if (!t.in_place) store_floats(result, t.param, slot);
}

constexpr int kResidentBlocks = 4;  // at least, per multiprocessor; allows 64 registers

// Updates tensors of any dtypes and alignment, one warp per kStateBlock elements of a segment.
// Whole vectors are read and written if all tensors are `aligned` and the segment begins with a
// vector.
template <class Rule>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    update_blocks(const __grid_constant__ RuleSegments<Rule> segments, Tensors t,
                  StochasticRounding rounding, bool aligned) {
  __shared__ WarpRandom random[kThreads / kWarp];
  const auto place = segments.place();
  const RuleSegment<Rule>& segment = segments.at[place.segment];
  Rule rule = segment.rule;
  if (!complete_rule(t, segment.parameter, rule)) return skip(segments, t);
  const unsigned warp = place.block * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int64_t first = warp * kStateBlock;
  if (first >= segment.numel) return;  // true for all threads of a warp or none
  const Staged staged(segment.begin + first, segment.begin + segment.numel, aligned,
                      static_cast<int>(threadIdx.x) % kWarp);
  const int64_t element = segment.element + first;
  rounding.parameter = segment.parameter;
  WarpRandom& bits = random[threadIdx.x / kWarp];
  if constexpr (Rule::kSteps) staged.draw(t.master, rounding, element, bits);
  const DeviceMath math;
  Floats states[2][kGroups] = {};
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const Slot slot = staged.slot(group);
    Floats master = load_floats(t.master, slot);
#pragma unroll
    for (int k = 0; k < Rule::kStates; ++k) {
      states[k][group] = staged.load(t.states[k], t.scales[k], k == 0, group);
    }
    Floats grad = {};
    if constexpr (Rule::kReadsGrad) grad = load_floats(t.grad, slot);
    Floats result = {};
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (!slot.has(k)) continue;
      result.at[k] =
          rule(math, grad.at[k], master.at[k], states[0][group].at[k], states[1][group].at[k]);
    }
    if constexpr (Rule::kSteps) staged.store(master, t.master, group, bits);
    if (!t.in_place) store_floats(result, t.param, slot);
  }
#pragma unroll
  for (int k = 0; Rule::kWritesStates && k < Rule::kStates; ++k) {
    rounding.tensor = static_cast<uint32_t>(k) + 1;
    staged.store(states[k], t.states[k], t.scales[k], k == 0, rounding, element, bits);
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
                     .in_place = from.param.data == from.master.data,
                     .param_is_buffer = from.param_is_buffer};
  const bool aligned = takes_vectors(from.master) && takes_vectors(states[0]) &&
                       takes_vectors(states[1]) && takes_vectors(from.grad) &&
                       takes_vectors(from.param);
  if (aligned && is_fp32(from.master) && is_fp32(states[0]) && is_fp32(states[1])) {
    const auto blocks = [](const UpdateSegment& s) {
      const int64_t end = s.begin + s.numel;
      return blocks_of((end + kVector - 1) / kVector - s.begin / kVector);
    };
    return for_each_launch<Some>(all, blocks, [&](const Some& some) {
      launch(update_vectors<Rule>, some.blocks(), kThreads, stream, some, t);
    });
  }
  const StochasticRounding rounding{.step = all.front().scalars.step};
  const auto blocks = [](const UpdateSegment& s) {
    return blocks_of((s.numel + kStateBlock - 1) / kStateBlock * kWarp);
  };
  for_each_launch<Some>(all, blocks, [&](const Some& some) {
    launch(update_blocks<Rule>, some.blocks(), kThreads, stream, some, t, rounding, aligned);
  });
}

}  // namespace

void update(cudaStream_t stream, const UpdateTensors& tensors,
            std::span<const UpdateSegment> segments) {
  if (segments.empty()) return;
  with_rule(segments.front().scalars.rule, tensors.states[0].data != nullptr,
            [&]<typename T>(T*) { update_with<T>(stream, tensors, segments); });
}

}  // namespace zerorun::cuda
