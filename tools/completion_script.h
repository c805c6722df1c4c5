#pragma once

#include <string>

namespace zerorun {

// The script that makes bash, zsh or fish ask `zerorun completion --words` for candidates.
std::string completion_script(const std::string& shell);

}  // namespace zerorun
