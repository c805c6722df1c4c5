#pragma once

#include <string>
#include <string_view>

namespace zerorun::train {

// Makes text that a byte-level model has generated safe to print: invalid UTF-8 and control
// characters other than line breaks and tabs become U+FFFD.
std::string sample_text(std::string_view bytes);

}  // namespace zerorun::train
