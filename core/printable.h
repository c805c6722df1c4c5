#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace zerorun {

// Returns the number of bytes of the UTF-8 character at the beginning of `text`, or 0 if it is not
// valid UTF-8.
size_t utf8_size(std::string_view text);

// Like utf8_size, but returns 0 for control characters, too, which must not be written to a
// terminal.
size_t printable_size(std::string_view text);

// Makes external text (a key, a path, the content of a file) safe for one line of a message:
// control characters and bytes that are not UTF-8 become \xNN, and the text is cut off after
// `max_bytes`.
std::string printable(std::string_view text, size_t max_bytes = 200);

// Like printable, for a whole message: keeps line breaks and tabs, and does not cut.
std::string printable_lines(std::string_view text);

}  // namespace zerorun
