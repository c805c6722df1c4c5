#pragma once

#include <cstdint>
#include <vector>

#include "zerorun/checkpoint.h"

namespace zerorun {

// The values of one parameter of a checkpoint: its master, where there is one.
class SavedValues {
 public:
  // Reads and checks them. Throws CheckpointError, IoError. `parameter`: one that has data.
  SavedValues(const SavedModel& model, size_t parameter);

  int64_t numel() const { return numel_; }
  double value(int64_t element) const;
  double norm() const;  // L2
  bool all_finite() const;

 private:
  DType dtype_;
  int64_t numel_ = 0;
  std::vector<std::byte> bytes_;
};

// A parameter of which a checkpoint has values of its own.
bool has_values(const SavedModel::Parameter& parameter);
uint64_t nbytes_of(const SavedModel::Parameter& parameter);

}  // namespace zerorun
