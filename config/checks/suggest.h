#pragma once

#include <span>
#include <string>
#include <string_view>

// Names that the writer of a wrong one may have meant: of configuration keys, options, programs.
namespace zerorun {

class KeyTable;

// Number of insertions, deletions, replacements and swaps of neighbours that turn one name into the
// other, ignoring case and taking '-' for '_'; some number above `limit` when it is above.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit);

// The candidate that is nearest to `name`; empty when none is near.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// Says what to do about a key that the table does not have below `block`: names the nearest keys at
// that level, else the pointers of such keys elsewhere, else the keys that are valid there.
std::string suggest_key(const KeyTable& table, std::string_view block, std::string_view name);

// Returns ` (did you mean "AdamW"?)`, or nothing when no choice is near.
std::string suggest_choice(std::string_view choices, std::string_view text);

}  // namespace zerorun
