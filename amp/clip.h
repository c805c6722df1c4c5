#pragma once

namespace zerorun {

// The factor that brings a gradient of global L2 norm `norm` to at most `max_norm`; 1 when
// `max_norm` is 0 (clipping off). As torch.nn.utils.clip_grad_norm_, whose 1e-6 keeps it finite; a
// norm that is not a number stays visible as such.
inline double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor > 1.0 ? 1.0 : factor;
}

}  // namespace zerorun
