#pragma once

#include <optional>
#include <string>

#include "zerorun/communicator.h"

namespace zerorun {

// A Store that can also be asked for a key without waiting for it. Those of zerorun can.
class LookupStore : public Store {
 public:
  virtual std::optional<std::string> find(const std::string& key) = 0;
};

}  // namespace zerorun
