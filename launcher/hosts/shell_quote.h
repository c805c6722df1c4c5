#pragma once

#include <string>

namespace zerorun {

// Quotes a word for a shell.
std::string shell_quote(const std::string& word);

}  // namespace zerorun
