#pragma once

#include <string>
#include <string_view>

namespace zerorun::train {

// Text that is safe to show: what is not UTF-8, and control characters other than line breaks and
// tabs, become U+FFFD. A model of bytes generates both.
std::string printable(std::string_view bytes);

}  // namespace zerorun::train
