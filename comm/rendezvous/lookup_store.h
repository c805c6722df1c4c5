#pragma once

#include <optional>
#include <string>

#include "zerorun/communicator.h"

namespace zerorun {

// A Store that can also look up a key without waiting for it. All stores of zerorun can.
class LookupStore : public Store {
 public:
  virtual std::optional<std::string> find(const std::string& key) = 0;
};

}  // namespace zerorun
