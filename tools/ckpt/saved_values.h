#pragma once

#include <cstdint>
#include <vector>

#include "zerorun/checkpoint.h"

namespace zerorun {

// The values of a parameter in a checkpoint, from its master if there is one.
class SavedValues {
 public:
  // Reads and verifies the values of `parameter`, which must have data. Throws CheckpointError or
  // IoError.
  SavedValues(const SavedModel& model, size_t parameter);

  int64_t numel() const { return numel_; }
  double value(int64_t element) const;
  // The absolute difference to the same element of `other`; 0 only if they are equal. NaN equals
  // NaN.
  double distance(const SavedValues& other, int64_t element) const;
  double norm() const;  // L2 norm
  bool all_finite() const;

 private:
  template <typename T>
  T read(int64_t element) const;

  DType dtype_;
  int64_t numel_ = 0;
  std::vector<std::byte> bytes_;
};

// True if the checkpoint has values of the parameter, that is, it is saved and not an alias.
bool has_values(const SavedModel::Parameter& parameter);
uint64_t nbytes_of(const SavedModel::Parameter& parameter);

}  // namespace zerorun
