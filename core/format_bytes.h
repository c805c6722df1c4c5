#pragma once

#include <cstddef>
#include <string>

namespace zerorun {

// "123 B", "1.5 MiB".
std::string format_bytes(size_t nbytes);

}  // namespace zerorun
