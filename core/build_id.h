#pragma once

#include <array>

namespace zerorun {

// Identifies a build: a hash of its sources, the compiler and its options (cmake/BuildId.cmake). It
// is equal in all programs and libraries of one build, and differs in builds of other sources.
using BuildId = std::array<char, 33>;  // 32 hexadecimal digits and a zero
BuildId build_id();

}  // namespace zerorun
