#pragma once

#include <span>
#include <string>
#include <string_view>

namespace zerorun {

// The candidate with the fewest edits from `name`, for "did you mean"; empty when none is close.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

}  // namespace zerorun
