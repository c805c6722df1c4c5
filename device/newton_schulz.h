#pragma once

namespace zerorun {

// The Newton-Schulz iteration of Jordan 2024, "Muon": X <- aX + (bA + cA^2)X with A = XX'. The
// coefficients maximise the slope at zero instead of converging to 1: singular values end between
// about 0.7 and 1.2.
struct NewtonSchulz {
  static constexpr float kA = 3.4445F;
  static constexpr float kB = -4.7750F;
  static constexpr float kC = 2.0315F;
  // Added to the norm by which X is divided first.
  static constexpr double kEps = 1e-7;
};

}  // namespace zerorun
