#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "zerorun/export.h"

namespace zerorun {

// What a rank does with the time in which it does not wait for other ranks.
enum class StepPart : uint8_t {
  compute,  // the model, communication itself, and all that is none of the following
  data,     // between calls of the engine: loading the batch, evaluation, logging
  copy,     // waiting for offloading: copies, files, and updates on the host's threads
  save,     // saving checkpoints
};
inline constexpr int kStepParts = 4;
ZR_API std::string_view name_of(StepPart part);

// How a rank spent the time of a step, in fractions of it. A step lasts from the gradient norm of
// the step before to that of this one.
struct StepShares {
  double waited = 0.0;  // for other ranks, in collectives
  std::array<double, kStepParts> parts{};

  double operator[](StepPart part) const { return parts[static_cast<size_t>(part)]; }
};

// A rank that the others wait for in step after step (docs/slow.md has the rule).
struct Straggler {
  int rank = 0;
  std::string host;
  double share = 0.0;  // fraction of the training's time in which the others wait for it
  StepPart cause = StepPart::compute;  // what takes longer on this rank than on the others

  // "rank 3 (host b) is waited for: 12 % of the time, spent in offloading"
  ZR_API std::string text() const;
};

struct StragglerReport {
  StepShares own;                  // of this rank's last step
  std::optional<Straggler> found;  // on rank 0 of the job, if there is one
};

}  // namespace zerorun
