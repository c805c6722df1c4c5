#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace zerorun {

// Number of bytes of the UTF-8 character that `text` begins with; 0 when it begins with none.
size_t utf8_size(std::string_view text);

// The same, but 0 for control characters too: what a terminal may be given.
size_t printable_size(std::string_view text);

// Foreign text (a key, a path, the content of a file) made fit for one line of a message: control
// characters and bytes that are not UTF-8 become \xNN, and what exceeds `max_bytes` is cut off.
std::string printable(std::string_view text, size_t max_bytes = 200);

// The same for a whole message, whose line breaks and tabs stay.
std::string printable_lines(std::string_view text);

}  // namespace zerorun
