#pragma once

#include <span>
#include <string>
#include <string_view>

// Suggestions for misspelt names of configuration keys, options and programs.
namespace zerorun {

// Returns the number of insertions, deletions, replacements and swaps of neighbouring characters
// that turn one name into the other, ignoring case and treating '-' as '_'. If it exceeds `limit`,
// the result is some number above `limit`.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit);

// Returns the candidate that is nearest to `name`, or "" if none is similar.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// Returns advice about an unknown key of `block`: the nearest keys of that block, else the pointers
// of similar keys elsewhere, else the valid keys of the block.
std::string suggest_key(std::string_view block, std::string_view name);

// Returns ` (did you mean "AdamW"?)`, or "" if no choice is similar.
std::string suggest_choice(std::string_view choices, std::string_view text);

}  // namespace zerorun
