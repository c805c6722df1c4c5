#pragma once

#include <vector>

#include "core/check.h"
#include "zerorun/tensor.h"

namespace zerorun::train {

// Calls body(pointer) with a pointer of the view's element type: float or Bf16.
template <typename Body>
decltype(auto) with_storage(TensorView view, const Body& body) {
  ZR_CHECK(view.dtype == DType::fp32 || view.dtype == DType::bf16,
           "the model computes in fp32 or bf16, not {}", name_of(view.dtype));
  if (view.dtype == DType::bf16) return body(view.as<Bf16>());
  return body(view.as<float>());
}

}  // namespace zerorun::train
