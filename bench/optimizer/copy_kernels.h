#pragma once

#include <cstdint>

#include "zerorun/device.h"

namespace zerorun::bench {

// The limit of memory: kernels that move the bytes of an optimizer kernel and compute nothing. Same
// streams, same reads and writes, same vectors, on the threads of core/parallel.h.

// Reads and writes the three states in place and copies the gradient to the parameter, unless that
// is the master copy. `past_caches`: the parameter is written with streaming stores.
void copy_like_adam(const UpdateTensors& tensors, bool past_caches);

// Reads `src`; returns a value that depends on all of it.
uint64_t read_like_norm(TensorView src);

}  // namespace zerorun::bench
