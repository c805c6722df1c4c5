#include "config/problems.h"

#include <algorithm>

#include "core/check.h"

namespace zerorun {

namespace {

constexpr size_t kMaxPointerBytes = 200;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; }

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  const bool cut = text.size() > max_bytes;
  if (cut) {
    while (max_bytes > 0 && is_continuation(text[max_bytes])) --max_bytes;
    text = text.substr(0, max_bytes);
  }
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (cut) out += "...";
  return out;
}

void ConfigProblems::throw_if_any() const {
  if (empty()) return;
  std::vector<Problem> sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Problem& a, const Problem& b) {
    return std::pair(a.where.line, a.where.column) < std::pair(b.where.line, b.where.column);
  });
  std::string text = fmt::format("{}: {} problem{}", source_, count_, count_ == 1 ? "" : "s");
  for (size_t i = 0; i < sorted.size(); ++i) {
    const Problem& problem = sorted[i];
    text += fmt::format(
        "\n  {}. {}", i + 1,
        problem.pointer.empty() ? "top level" : printable(problem.pointer, kMaxPointerBytes));
    if (problem.where.line > 0) {
      text += fmt::format(" ({}:{})", problem.where.line, problem.where.column);
    }
    text += fmt::format(": {}", problem.text);
  }
  if (count_ > sorted.size()) text += fmt::format("\n  ... and {} more", count_ - sorted.size());
  throw ConfigError(text);
}

}  // namespace zerorun
