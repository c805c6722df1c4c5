#include "train/text/sample_text.h"

#include <algorithm>

#include "core/printable.h"

namespace zerorun::train {

std::string sample_text(std::string_view bytes) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string text;
  while (!bytes.empty()) {
    const bool is_space = bytes.front() == '\n' || bytes.front() == '\t';
    const size_t size = is_space ? 1 : printable_size(bytes);
    text += size > 0 ? bytes.substr(0, size) : kReplacement;
    bytes.remove_prefix(std::max<size_t>(size, 1));
  }
  return text;
}

}  // namespace zerorun::train
