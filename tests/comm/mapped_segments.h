// The memory that ranks of this process share, of which nothing may stay.
#pragma once

#include "tests/common.h"

namespace zerorun::testing {

// How many mappings of shared segments this process has: they are files without a name.
inline int64_t mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:zerorun") != std::string::npos) ++count;
  }
  return count;
}

}  // namespace zerorun::testing
