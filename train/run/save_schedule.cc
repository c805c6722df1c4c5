#include "train/run/save_schedule.h"

namespace zerorun::train {

bool SaveSchedule::is_time(int64_t step, bool is_free) {
  const auto is_multiple = [step](int64_t of) { return of > 0 && step % of == 0; };
  const bool is_due = is_multiple(every_);
  due_ += is_due ? 1 : 0;
  if (!is_due && !is_waiting_) return false;
  if (is_free || (is_due && is_multiple(keep_every_))) return true;
  put_off_ += is_due ? 1 : 0;
  is_waiting_ = true;
  return false;
}

void SaveSchedule::saved(int64_t step) {
  is_waiting_ = false;
  last_step_ = step;
}

}  // namespace zerorun::train
