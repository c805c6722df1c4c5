#pragma once

#include <functional>
#include <string>

#include "zerorun/communicator.h"

namespace zerorun {

// Waits for keys of a store, up to the deadline of the communicator, and prints a notice on stderr
// if a wait is long.
class PatientGet {
 public:
  // `options` must outlive this.
  explicit PatientGet(const CommunicatorOptions& options) : options_(options) {}

  // Returns the value of `key`. `what` names what this rank waits for. Throws CommError at the
  // deadline, and at once if the store is unreachable.
  std::string operator()(const std::string& key, const std::function<std::string()>& what) const;

 private:
  const CommunicatorOptions& options_;
};

}  // namespace zerorun
