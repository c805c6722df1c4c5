#include "device/device_calls.h"

#include "core/check.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

namespace {

bool is_floating(DType dtype) {
  return dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16;
}

void check_same_numel(TensorView a, TensorView b, std::string_view kernel) {
  ZR_CHECK(a.numel == b.numel, "{}: got views of {} and {} elements", kernel, a.numel, b.numel);
}

void check_floating(TensorView view, std::string_view kernel) {
  ZR_CHECK(is_floating(view.dtype), "{}: got {}, expected fp32, bf16 or fp16", kernel,
           name_of(view.dtype));
}

bool is_step(UpdateRule rule) {
  return rule != UpdateRule::lamb_direction && rule != UpdateRule::muon_direction;
}

// At least; sgd may have one.
int states_of(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::sgd:
      return 0;
    case UpdateRule::adagrad:
    case UpdateRule::lion:
    case UpdateRule::muon_direction:
      return 1;
    case UpdateRule::adam:
    case UpdateRule::lamb:
    case UpdateRule::lamb_direction:
      return 2;
  }
  return 0;
}

void check_state(const UpdateScalars& scalars, const UpdateTensors& tensors, size_t index) {
  const TensorView state = tensors.states[index];
  if (state.data == nullptr && state.empty()) return;
  check_same_numel(tensors.master, state, "update");
  if (state.dtype != DType::uint8) return check_floating(state, "update");
  const TensorView scales = tensors.scales[index];
  ZR_CHECK(scalars.rule == UpdateRule::adam, "update: only adam has states in uint8");
  ZR_CHECK(
      scales.dtype == DType::fp32 && scales.numel == (state.numel + kStateBlock - 1) / kStateBlock,
      "update: got {} scales of {} for {} elements", scales.numel, name_of(scales.dtype),
      state.numel);
}

}  // namespace

void check_update(const UpdateScalars& scalars, const UpdateTensors& tensors) {
  const bool in_place = tensors.param.data == tensors.master.data;
  check_floating(tensors.master, "update");
  check_floating(tensors.param, "update");
  check_same_numel(tensors.master, tensors.param, "update");
  ZR_CHECK(in_place ? tensors.master.dtype == tensors.param.dtype || tensors.param.empty()
                    : tensors.master.dtype == DType::fp32 || !is_step(scalars.rule),
           "update: got a master in {} and a parameter in {}, expected fp32 or one tensor for both",
           name_of(tensors.master.dtype), name_of(tensors.param.dtype));
  if (scalars.rule != UpdateRule::lamb) {
    check_floating(tensors.grad, "update");
    check_same_numel(tensors.master, tensors.grad, "update");
  }
  const int states = states_of(scalars.rule);
  ZR_CHECK((tensors.states[0].numel == tensors.master.numel || states < 1) &&
               (tensors.states[1].numel == tensors.master.numel || states < 2),
           "update: got states of {} and {} elements, expected {} of {}", tensors.states[0].numel,
           tensors.states[1].numel, states, tensors.master.numel);
  for (size_t i = 0; i < tensors.states.size(); ++i) check_state(scalars, tensors, i);
  ZR_CHECK(tensors.element % kStateBlock == 0, "update: got element {}, expected a multiple of {}",
           tensors.element, kStateBlock);
  ZR_CHECK(is_step(scalars.rule) || (tensors.param.dtype == DType::fp32 && !in_place),
           "update: a direction is written in fp32, beside the master");
}

void check_cast(TensorView src, TensorView dst) {
  check_same_numel(src, dst, "cast");
  ZR_CHECK(src.dtype == dst.dtype || (is_floating(src.dtype) && is_floating(dst.dtype)),
           "cast: got {} to {}, expected one dtype or two floating ones", name_of(src.dtype),
           name_of(dst.dtype));
}

void check_add(TensorView src, TensorView dst) {
  check_same_numel(src, dst, "add");
  check_floating(src, "add");
  check_floating(dst, "add");
}

void check_scale(TensorView dst) { check_floating(dst, "scale"); }

void check_sum_of_squares(TensorView src, TensorView sum) {
  check_floating(src, "sum_of_squares");
  ZR_CHECK(sum.dtype == DType::int64 && sum.numel == ExactSum::kWords,
           "sum_of_squares: got a sum of {} {} elements, expected {} int64", sum.numel,
           name_of(sum.dtype), ExactSum::kWords);
}

void check_orthogonalize(TensorView matrix, int64_t rows, int64_t cols, TensorView work) {
  ZR_CHECK(matrix.dtype == DType::fp32 && matrix.numel == rows * cols,
           "orthogonalize: got {} elements of {}, expected {} x {} of fp32", matrix.numel,
           name_of(matrix.dtype), rows, cols);
  ZR_CHECK(work.dtype == DType::fp32 && work.numel >= orthogonalize_work(rows, cols),
           "orthogonalize: got {} elements of {} to work in, expected {} of fp32", work.numel,
           name_of(work.dtype), orthogonalize_work(rows, cols));
}

}  // namespace zerorun
