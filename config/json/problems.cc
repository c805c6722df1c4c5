#include "config/json/problems.h"

#include <algorithm>

#include "core/check.h"
#include "core/printable.h"

namespace zerorun {

void ConfigProblems::throw_if_any() const {
  if (empty()) return;
  std::vector<Problem> sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Problem& a, const Problem& b) {
    return std::pair(a.where.line, a.where.column) < std::pair(b.where.line, b.where.column);
  });
  std::string text = fmt::format("{}: {} problem{}", source_, count_, count_ == 1 ? "" : "s");
  for (size_t i = 0; i < sorted.size(); ++i) {
    const Problem& problem = sorted[i];
    text += fmt::format("\n  {}. {}", i + 1,
                        problem.pointer.empty() ? "top level" : printable(problem.pointer));
    if (problem.where.line > 0) {
      text += fmt::format(" ({}:{})", problem.where.line, problem.where.column);
    }
    text += fmt::format(": {}", problem.text);
  }
  if (count_ > sorted.size()) text += fmt::format("\n  ... and {} more", count_ - sorted.size());
  throw ConfigError(text);
}

}  // namespace zerorun
