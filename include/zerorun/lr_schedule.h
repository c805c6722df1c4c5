#pragma once

#include <cstdint>
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
  std::optional<Betas> betas;  // OneCycle with cycle_momentum; for optimizers that have betas
};

// A learning rate schedule: a function of the number of applied steps and nothing else, so that
// skipped steps leave it alone and a resumed run continues it.
//
//   values = schedule.values(engine.step_count(), group) -> set the group -> engine.step()
//
// A checkpoint needs the number of applied steps only; DeepSpeed's holds last_batch_iteration.
class ZR_API LrSchedule {
 public:
  virtual ~LrSchedule() = default;

  // For the step after `applied_steps` applied ones: 0 gives what the first step uses. Throws
  // InternalError when there is no such group or the count is negative.
  ScheduledValues values(int64_t applied_steps, int group) const;
  int groups() const { return static_cast<int>(base_lrs_.size()); }

  // The iteration that DeepSpeed's state_dict names after `applied_steps` applied steps.
  int64_t last_batch_iteration(int64_t applied_steps) const { return first_ + applied_steps; }

 protected:
  LrSchedule(std::vector<double> base_lrs, int64_t first_iteration)
      : base_lrs_(std::move(base_lrs)), first_(first_iteration) {}

  double base_lr(int group) const { return base_lrs_[static_cast<size_t>(group)]; }
  // `iteration` is DeepSpeed's last_batch_iteration, from -1: the one after which the values hold.
  virtual ScheduledValues at(int64_t iteration, int group) const = 0;

 private:
  const std::vector<double> base_lrs_;
  const int64_t first_;  // iteration of 0 applied steps
};

// `base_lrs`: the learning rates that the parameter groups start from, one per group. Without a
// type the schedule gives these. Throws ConfigError naming the JSON pointers of what is missing,
// was left to "auto" (resolve_auto), contradicts itself, or does not suit the number of groups.
ZR_API std::unique_ptr<LrSchedule> make_lr_schedule(const SchedulerConfig& config,
                                                    std::vector<double> base_lrs);

}  // namespace zerorun
