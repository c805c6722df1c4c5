#include "config/checks/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "config/keys/key_table.h"
#include "core/joined.h"

namespace zerorun {

namespace {

constexpr size_t kMaxNameBytes = 64;  // longer names are not typing errors
constexpr size_t kMaxOffered = 3;
constexpr size_t kMaxListed = 16;

std::string normalized(std::string_view name) {
  std::string out;
  for (const char c : name) {
    out += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

// Returns the maximum number of typing errors for a name of this length.
size_t allowed_distance(std::string_view name) { return std::clamp<size_t>(name.size() / 3, 1, 3); }

// True if a name's words are among those of a longer one ("warmup_steps" and "warmup_num_steps"),
// or it is the greater part of its beginning ("reduce_buck" and "reduce_bucket_size").
bool lacks_words(std::string_view name, std::string_view candidate) {
  const std::string words = normalized(name) + "_";
  const std::string all = normalized(candidate) + "_";
  if (all.starts_with(normalized(name)) && 2 * name.size() > candidate.size()) return true;
  size_t at = 0;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    end = all.find('_', begin) + 1;
    const size_t size = words.find('_', at) + 1 - at;
    if (all.compare(begin, end - begin, words, at, size) == 0) at += size;
  }
  return at == words.size() && name.size() > 3;
}

// Keeps the candidates that are nearest to a name.
class Nearest {
 public:
  explicit Nearest(std::string_view name) : name_(name), best_(allowed_distance(name)) {}

  void offer(std::string_view candidate, std::string_view shown) {
    if (name_.size() > kMaxNameBytes) return;
    size_t distance = edit_distance(name_, candidate, best_);
    if (lacks_words(name_, candidate)) distance = std::min<size_t>(distance, 1);
    // A candidate in which every letter differs, or the first and another, is not similar.
    if (distance > best_ || distance >= candidate.size()) return;
    const bool same_first = normalized(name_.substr(0, 1)) == normalized(candidate.substr(0, 1));
    if (distance > 1 && !same_first) return;
    if (distance < best_) found_.clear();
    best_ = distance;
    if (std::ranges::find(found_, shown) == found_.end()) found_.push_back(shown);
  }
  const std::vector<std::string_view>& found() const { return found_; }

 private:
  std::string_view name_;
  size_t best_;
  std::vector<std::string_view> found_;
};

// Returns the keys whose names are near; `shown` says how a key is named, or is empty for one that
// does not count.
template <typename Shown>
std::vector<std::string_view> near_keys(std::string_view name, std::span<const KeySpec* const> keys,
                                        const Shown& shown) {
  Nearest nearest(name);
  for (const KeySpec* spec : keys) {
    for (const std::string_view known : {spec->name(), spec->alias, spec->nickname}) {
      if (!known.empty() && !shown(*spec).empty()) nearest.offer(known, shown(*spec));
    }
  }
  return nearest.found();
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
  const size_t difference = std::max(a.size(), b.size()) - std::min(a.size(), b.size());
  if (difference > limit) return difference;
  const std::string x = normalized(a);
  const std::string y = normalized(b);
  // Three rows of the optimal string alignment table (Damerau 1964, adjacent swaps).
  std::vector<size_t> before(y.size() + 1);
  std::vector<size_t> above(y.size() + 1);
  std::vector<size_t> row(y.size() + 1);
  for (size_t j = 0; j <= y.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= x.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= y.size(); ++j) {
      const size_t replaced = above[j - 1] + (x[i - 1] == y[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && x[i - 1] == y[j - 2] && x[i - 2] == y[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    // The minimum of two successive rows never decreases.
    const size_t least = std::min(*std::ranges::min_element(row), *std::ranges::min_element(above));
    if (least > limit) return least;
  }
  return row[y.size()];
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  Nearest nearest(name);
  for (const std::string& candidate : candidates) nearest.offer(candidate, candidate);
  return nearest.found().empty() ? std::string() : std::string(nearest.found().front());
}

std::string suggest_key(std::string_view block, std::string_view name) {
  std::vector<std::string_view> here =
      near_keys(name, key_table().children(block), [](const KeySpec& spec) { return spec.name(); });
  if (here.size() > kMaxOffered) here.resize(kMaxOffered);
  if (!here.empty()) return fmt::format("did you mean \"{}\"?", fmt::join(here, "\" or \""));
  const auto elsewhere = near_keys(name, key_table().keys(), [&](const KeySpec& spec) {
    const bool counts = spec.parent() != block && spec.status != KeyStatus::removed;
    return counts ? spec.pointer : std::string_view();
  });
  if (!elsewhere.empty() && elsewhere.size() <= kMaxOffered) {
    return fmt::format("did you mean {}?", fmt::join(elsewhere, " or "));
  }
  if (block.empty()) return "remove it (programs that import deepspeed ignore it, with a warning)";
  const auto valid = key_table().children(block);
  if (valid.size() > kMaxListed) return "remove it, or see `zerorun config schema`";
  const auto name_of = [](const KeySpec* spec) { return spec->name(); };
  return fmt::format("expected one of {}", joined(valid, ", ", name_of));
}

std::string suggest_choice(std::string_view choices, std::string_view text) {
  Nearest nearest(text);
  for (const std::string_view choice : split_choices(choices)) nearest.offer(choice, choice);
  if (nearest.found().empty()) return {};
  return fmt::format(" (did you mean \"{}\"?)", fmt::join(nearest.found(), "\" or \""));
}

}  // namespace zerorun
