#pragma once

#include <string>
#include <string_view>

namespace zerorun {

// What `text_of` gives for each item, with `separator` between. clang 14, whose clang-tidy reads
// these sources, cannot compile the views of libstdc++ 12.
template <typename Items, typename TextOf>
std::string joined(const Items& items, std::string_view separator, const TextOf& text_of) {
  std::string found;
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) found += separator;
    is_first = false;
    found += text_of(item);
  }
  return found;
}

}  // namespace zerorun
