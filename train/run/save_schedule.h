#pragma once

#include <cstdint>

namespace zerorun::train {

// After which steps a run saves. Beside the training, a save that falls due while the one before is
// still being written is put off to the first step after that, and stands for those that fall due
// meanwhile. What keep_every keeps is saved at its own step, for which the training waits.
class SaveSchedule {
 public:
  // Every so many steps; 0: never.
  SaveSchedule(int64_t every, int64_t keep_every) : every_(every), keep_every_(keep_every) {}

  // For each step in turn; true to save. `is_free`: no save is being written.
  bool is_time(int64_t step, bool is_free);
  void saved(int64_t step);

  int64_t last_step() const { return last_step_; }  // that was saved; -1: none
  int64_t due() const { return due_; }
  int64_t put_off() const { return put_off_; }

 private:
  const int64_t every_;
  const int64_t keep_every_;
  int64_t last_step_ = -1;
  int64_t due_ = 0;
  int64_t put_off_ = 0;
  bool is_waiting_ = false;  // one that was put off
};

}  // namespace zerorun::train
