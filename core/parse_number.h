#pragma once

#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>

namespace zerorun {

// Removes a number from the front of `text` and returns it; nullopt, and `text` as it was, if it
// begins with none or with one that T cannot hold.
template <typename T>
std::optional<T> take_number(std::string_view& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

// Returns the number that `text` is; nullopt unless all of it is one, from `low` to `high`.
template <typename T = int>
std::optional<T> parse_number(std::string_view text, T low = std::numeric_limits<T>::lowest(),
                              T high = std::numeric_limits<T>::max()) {
  const std::optional<T> value = take_number<T>(text);
  const bool fits = value && text.empty() && *value >= low && *value <= high;  // false for NaN
  return fits ? value : std::nullopt;
}

}  // namespace zerorun
