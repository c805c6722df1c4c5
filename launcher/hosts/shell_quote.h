#pragma once

#include <string>

namespace zerorun {

// The word as a shell needs it.
std::string shell_quote(const std::string& word);

}  // namespace zerorun
