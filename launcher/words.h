#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

// The parts of short texts: options, lines of hostfiles, values of variables.

// "a,,b" -> {"a", "", "b"}; the empty text is one empty part.
std::vector<std::string_view> split(std::string_view text, char separator);
// `text` without blanks at both ends.
std::string_view trim(std::string_view text);
// The words of `text`, which are separated by blanks.
std::vector<std::string_view> split_words(std::string_view text);
// Quotes a word for a shell.
std::string shell_quote(const std::string& word);
// A command line for a shell.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace zerorun
