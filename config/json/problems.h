#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/json/json_tree.h"

namespace zerorun {

// Collects all problems of a configuration file, so that they are reported at once.
class ConfigProblems {
 public:
  explicit ConfigProblems(std::string source) : source_(std::move(source)) {}

  template <typename... Args>
  void add(std::string_view pointer, JsonPosition where, fmt::format_string<Args...> format,
           Args&&... args) {
    ++count_;
    if (is_full()) return;
    problems_.push_back(
        {std::string(pointer), where, fmt::format(format, std::forward<Args>(args)...)});
  }

  bool empty() const { return count_ == 0; }
  // True if further problems are only counted, not listed.
  bool is_full() const { return problems_.size() >= kMaxListed; }
  // If there are problems, throws ConfigError with a numbered list of them in the order of the
  // file.
  void throw_if_any() const;

 private:
  static constexpr size_t kMaxListed = 50;

  struct Problem {
    std::string pointer;
    JsonPosition where;
    std::string text;
  };

  std::string source_;
  std::vector<Problem> problems_;
  size_t count_ = 0;
};

}  // namespace zerorun
