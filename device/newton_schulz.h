#pragma once

#include <algorithm>
#include <array>

#include "zerorun/device.h"

namespace zerorun {

// One step of an iteration that orthogonalizes: X <- aX + (bA + cA^2)X with A = XX'.
struct NewtonSchulzStep {
  float a;
  float b;
  float c;
};

// Added to the norm by which X is divided first.
inline constexpr double kNewtonSchulzEps = 1e-7;

inline NewtonSchulzStep newton_schulz_step(const Orthogonalization& how, int step) {
  // Jordan 2024, "Muon". The coefficients maximise the slope at zero instead of converging to 1:
  // singular values end between about 0.7 and 1.2.
  if (!how.polar_express) return {3.4445F, -4.7750F, 2.0315F};
  // Amsel et al., arXiv 2505.16932: the best polynomial for what the steps before leave of singular
  // values from 1e-3 to 1; the last stands for all that follow. To be safe from rounding, each but
  // the last takes values 1.01 times as large, and so does the first, instead of the norm.
  struct Step {
    double a, b, c;
  };
  constexpr std::array<Step, 8> kSteps = {{
      {8.28721201814563, -23.595886519098837, 17.300387312530933},
      {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
      {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
      {3.3184196573706015, -2.488488024314874, 0.51004894012372},
      {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
      {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
      {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
      {1.875, -1.25, 0.375},
  }};
  constexpr int kLast = static_cast<int>(kSteps.size()) - 1;
  auto [a, b, c] = kSteps[static_cast<size_t>(std::min(step, kLast))];
  for (int i = (step < kLast ? 1 : 0) + (step == 0 ? 1 : 0); i > 0; --i) {
    constexpr double kSafety = 1.01;
    a /= kSafety;
    b /= kSafety * kSafety * kSafety;
    c /= kSafety * kSafety * kSafety * kSafety * kSafety;
  }
  return {static_cast<float>(a), static_cast<float>(b), static_cast<float>(c)};
}

}  // namespace zerorun
