#pragma once

#include <functional>
#include <string>

#include "zerorun/communicator.h"

namespace zerorun {

// Waits for keys of a store up to the deadline of a communicator's ranks, and says so on stderr
// when that takes long.
class PatientGet {
 public:
  // `options` must outlive this.
  explicit PatientGet(const CommunicatorOptions& options) : options_(options) {}

  // The value of `key`; `what` says what this rank waits for. Throws CommError at the deadline, and
  // at once when the store is gone.
  std::string operator()(const std::string& key, const std::function<std::string()>& what) const;

 private:
  const CommunicatorOptions& options_;
};

}  // namespace zerorun
