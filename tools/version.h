#pragma once

#include <string>

namespace zerorun {

// "zerorun 0.2.0 (commit 0123456789ab)".
std::string version_line();

}  // namespace zerorun
