#pragma once

#include <vector>

#include "core/check.h"
#include "zerorun/tensor.h"

namespace zerorun::train {

// Calls body(pointer) with a pointer of the view's element type: float, Bf16 or Fp16.
template <typename Body>
decltype(auto) with_storage(TensorView view, const Body& body) {
  if (view.dtype == DType::bf16) return body(view.as<Bf16>());
  if (view.dtype == DType::fp16) return body(view.as<Fp16>());
  ZR_CHECK(view.dtype == DType::fp32, "the model computes in fp32, bf16 or fp16, not {}",
           name_of(view.dtype));
  return body(view.as<float>());
}

}  // namespace zerorun::train
