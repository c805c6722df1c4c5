#pragma once

#include <string>
#include <string_view>

namespace zerorun::train {

// Text that a model of bytes has generated, made safe to show: what is not UTF-8, and control
// characters other than line breaks and tabs, become U+FFFD.
std::string sample_text(std::string_view bytes);

}  // namespace zerorun::train
