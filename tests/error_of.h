#pragma once

#include <string>

#include "zerorun/error.h"

namespace zerorun::testing {

// The text of the E that `call` throws; empty when it throws nothing.
template <typename E = Error, typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

}  // namespace zerorun::testing

namespace zerorun {

using testing::error_of;

}  // namespace zerorun
