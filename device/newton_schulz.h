#pragma once

namespace zerorun {

// Jordan 2024, "Muon": X <- aX + (bA + cA^2)X with A = XX', whose coefficients have the largest
// slope at zero rather than a limit: singular values end between about 0.7 and 1.2.
struct NewtonSchulz {
  static constexpr float kA = 3.4445F;
  static constexpr float kB = -4.7750F;
  static constexpr float kC = 2.0315F;
  // Added to the norm that X is divided by first.
  static constexpr double kEps = 1e-7;
};

}  // namespace zerorun
