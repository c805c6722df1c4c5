#pragma once

#include <string>
#include <string_view>

#include "config/key_table.h"

namespace zerorun {

// Names that the writer of a wrong one may have meant.

// Number of insertions, deletions, replacements and swaps of neighbours that turn one name into the
// other, ignoring case and taking '-' for '_'; some number above `limit` when it is above.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit);

// What to do about a key that the table does not have below `block`: the nearest names at that
// level, else the pointers of such names elsewhere, else the names that are valid there.
std::string suggest_key(const KeyTable& table, std::string_view block, std::string_view name);

// " (did you mean "AdamW"?)", or nothing when no choice is near.
std::string suggest_choice(std::string_view choices, std::string_view text);

}  // namespace zerorun
