#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "comm/group_options.h"

namespace zerorun {

// Waits for keys of a store, up to the deadline of the communicator, and prints a notice on stderr
// if a wait is long. A wait for a group ends when GroupOptions::look throws.
class PatientGet {
 public:
  // The longest time between two looks. The first ones come sooner, so that a rank that dies at
  // once is noticed at once.
  static constexpr std::chrono::seconds kLook{1};

  // `options` must outlive this object. `look` is called like GroupOptions::look; null: nothing.
  explicit PatientGet(const GroupOptions& options, std::function<void()> look = {})
      : options_(options), look_(std::move(look)) {}

  // Returns the value of `key`. `what` names what this rank waits for. Throws CommError at the
  // deadline, and at once if the store is unreachable.
  std::string operator()(const std::string& key, const std::function<std::string()>& what) const;

 private:
  const GroupOptions& options_;
  const std::function<void()> look_;  // or null
};

}  // namespace zerorun
