#pragma once

#include <fmt/format.h>

#include <utility>

#include "zerorun/error.h"

namespace zerorun {

// Throws an exception of type E with a formatted message.
template <typename E, typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace zerorun

// Throws InternalError unless `condition` holds: a bug in zerorun or a call out of order. The
// message says what was violated.
#define ZR_CHECK(condition, ...)                                                         \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      throw ::zerorun::InternalError(fmt::format("{}:{}: {} [{}]", __FILE__, __LINE__,   \
                                                 fmt::format(__VA_ARGS__), #condition)); \
    }                                                                                    \
  } while (false)
