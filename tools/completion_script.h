#pragma once

#include <string>

namespace zerorun {

// Returns the script that makes bash, zsh or fish call `zerorun completion --words` for candidates.
std::string completion_script(const std::string& shell);

}  // namespace zerorun
