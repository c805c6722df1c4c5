#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "zerorun/communicator.h"

namespace zerorun {

// Waits for keys of a store up to the deadline of a communicator's ranks, and says so on stderr
// when that takes long.
class PatientGet {
 public:
  // Between two calls of `look`.
  static constexpr std::chrono::seconds kLook{1};

  // `options` must outlive this. `look` may throw what ends a wait.
  explicit PatientGet(const CommunicatorOptions& options, std::function<void()> look = {})
      : options_(options), look_(std::move(look)) {}

  // The value of `key`; `what` says what this rank waits for. Throws CommError at the deadline, and
  // at once when the store is gone.
  std::string operator()(const std::string& key, const std::function<std::string()>& what) const;

 private:
  const CommunicatorOptions& options_;
  const std::function<void()> look_;  // or null
};

}  // namespace zerorun
