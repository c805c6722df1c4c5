#pragma once

#include "zerorun/device.h"

// The contracts of Device's functions of the same names, as every device checks them: each throws
// InternalError for dtypes and sizes that zerorun/device.h does not allow.
namespace zerorun {

void check_cast(TensorView src, TensorView dst);
void check_add(TensorView src, TensorView dst);
void check_scale(TensorView dst);
void check_sum_of_squares(TensorView src, TensorView sum);
void check_update(const UpdateScalars& scalars, const UpdateTensors& tensors);
void check_orthogonalize(TensorView matrix, int64_t rows, int64_t cols, TensorView work);

}  // namespace zerorun
