#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "zerorun/config.h"
#include "zerorun/export.h"

namespace zerorun {

// The values that a schedule sets for one parameter group.
struct ScheduledValues {
  struct Betas {
    double beta1 = 0.0;
    double beta2 = 0.0;
  };
  double lr = 0.0;
  std::optional<Betas> betas;  // set by OneCycle with cycle_momentum; for optimizers with betas
};

// A learning rate schedule. It is a function of the number of applied steps only, so skipped steps
// do not advance it, and a resumed run continues it.
//
//   values = schedule.values(engine.step_count(), group) -> set the group -> engine.step()
//
// A checkpoint needs only the number of applied steps. DeepSpeed's checkpoints have
// last_batch_iteration.
class ZR_API LrSchedule {
 public:
  // The values of a group with this initial learning rate for the step after `iteration`, which
  // counts like DeepSpeed's last_batch_iteration, from -1.
  using Rule = std::function<ScheduledValues(double base_lr, int group, int64_t iteration)>;
  // `first_iteration` corresponds to 0 applied steps.
  LrSchedule(std::vector<double> base_lrs, int64_t first_iteration, Rule rule)
      : base_lrs_(std::move(base_lrs)), first_(first_iteration), rule_(std::move(rule)) {}

  // Returns the values for the step that follows `applied_steps` applied steps; 0 gives those of
  // the first step. Throws InternalError if there is no such group or the count is negative.
  ScheduledValues values(int64_t applied_steps, int group) const;
  int groups() const { return static_cast<int>(base_lrs_.size()); }

  // Returns last_batch_iteration of DeepSpeed's state_dict after `applied_steps` applied steps.
  int64_t last_batch_iteration(int64_t applied_steps) const { return first_ + applied_steps; }

 private:
  const std::vector<double> base_lrs_;
  const int64_t first_;
  const Rule rule_;
};

// Creates the schedule of a configuration. `base_lrs` has the initial learning rate of each
// parameter group; without a type the schedule returns these. Throws ConfigError, naming JSON
// pointers, if values are missing, "auto" and not resolved (resolve_auto), contradictory, or do not
// match the number of groups.
ZR_API std::unique_ptr<LrSchedule> make_lr_schedule(const SchedulerConfig& config,
                                                    std::vector<double> base_lrs);

}  // namespace zerorun
