#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <vector>

#include "config/checks/check.h"
#include "config/checks/suggest.h"
#include "core/check.h"
#include "zerorun/version.h"

namespace zerorun {

namespace {

using Kind = JsonNode::Kind;

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

bool in_range(const KeyRange& range, double value) {
  return value >= range.low && value <= range.high && !(range.above_low && value == range.low);
}

std::string describe_range(std::string_view noun, const KeyRange& range) {
  const bool has_low = std::isfinite(range.low);
  const bool is_float_limit = range.high == std::numeric_limits<float>::max();
  const bool has_high = std::isfinite(range.high) && !is_float_limit;
  if (has_low && has_high) {
    return fmt::format("{} {} {} {} {}", noun, range.above_low ? "above" : "from", range.low,
                       range.above_low ? "and up to" : "to", range.high);
  }
  if (has_low && range.above_low) return fmt::format("{} above {}", noun, range.low);
  if (has_low) {
    return fmt::format("{} of at least {}{}", noun, range.low,
                       is_float_limit ? " that fits fp32" : "");
  }
  return std::string(noun);
}

std::string join_alternatives(const std::vector<std::string>& items) {
  if (items.size() < 2) return items.empty() ? std::string() : items.front();
  return fmt::format("{} or {}", fmt::join(items.begin(), items.end() - 1, ", "), items.back());
}

bool is_beta(const JsonNode& node) {
  if (!node.is_number()) return false;
  const auto value = static_cast<float>(node.number);  // 1 - 1e-9 is 1 in fp32
  return value >= 0.0F && value < 1.0F;
}

bool array_suits(const KeySpec& spec, const JsonNode& node) {
  const auto all = [&](const auto& suits) { return std::ranges::all_of(node.children, suits); };
  const auto is_string = [](const JsonNode& item) { return item.kind == Kind::string; };
  const auto is_number = [&](const JsonNode& item) {
    return item.is_number() && std::isfinite(item.number) && in_range(spec.range, item.number);
  };
  const auto is_integer = [&](const JsonNode& item) {
    return as_integer(item) && in_range(spec.range, item.number);
  };
  const size_t size = node.children.size();
  return (spec.takes(KeyType::strings) && all(is_string)) ||
         (spec.takes(KeyType::numbers) && size > 0 && all(is_number)) ||
         (spec.takes(KeyType::betas) && size == 2 && all(is_beta)) ||
         (spec.takes(KeyType::integers) && all(is_integer));
}

bool number_suits(const KeySpec& spec, const JsonNode& node) {
  if (spec.takes(KeyType::infinity) && std::isinf(node.number) && node.number > 0) return true;
  if (spec.takes(KeyType::integer) && as_integer(node)) return in_range(spec.range, node.number);
  return spec.takes(KeyType::number) && std::isfinite(node.number) &&
         in_range(spec.range, node.number);
}

bool string_suits(const KeySpec& spec, JsonNode& node) {
  if (spec.takes(KeyType::infinity) &&
      (node.text == "inf" || equal_ignoring_case(node.text, "Infinity"))) {
    return true;
  }
  if (!spec.takes(KeyType::string)) return false;
  if (spec.choices.empty()) return true;
  for (const std::string_view choice : split_choices(spec.choices)) {
    if (equal_ignoring_case(choice, node.text)) {
      node.text = choice;
      return true;
    }
  }
  return false;
}

bool suits(const KeySpec& spec, JsonNode& node) {
  switch (node.kind) {
    case Kind::null:
      return !spec.refuses_null;
    case Kind::boolean:
      return spec.takes(KeyType::boolean);
    case Kind::integer:
    case Kind::number:
      return number_suits(spec, node);
    case Kind::string:
      return string_suits(spec, node);
    case Kind::array:
      return array_suits(spec, node);
    case Kind::object:
      return spec.takes(KeyType::block | KeyType::free_form);
  }
  return false;
}

// 0 and 1 for false and true, as in Python.
bool is_boolean_number(const KeySpec& spec, const JsonNode& node) {
  constexpr unsigned kOthers = KeyType::integer | KeyType::number | KeyType::block;
  const std::optional<int64_t> integer = as_integer(node);
  return spec.takes(KeyType::boolean) && !spec.takes(kOthers) && integer &&
         (*integer == 0 || *integer == 1);
}

// `names` are separated by |.
bool is_one_of(std::string_view names, const JsonNode& node) {
  const auto known = split_choices(names);
  return node.kind == Kind::string && std::ranges::any_of(known, [&](std::string_view name) {
           return equal_ignoring_case(name, node.text);
         });
}

// Python's True and False; Hjson reads a comma behind them as part of the text.
bool is_python_boolean(const KeySpec& spec, std::string_view text) {
  if (text.ends_with(',')) text.remove_suffix(1);
  return spec.takes(KeyType::boolean) && (text == "True" || text == "False");
}

// Advises about a wrong value, beyond saying what was expected.
std::string advice(const KeySpec& spec, const JsonNode& node) {
  if (node.kind == Kind::null) return "; remove the key to get the default";
  const bool is_huge = node.kind == Kind::number && std::abs(node.number) >= 0x1p63;
  if (is_huge && !spec.takes(KeyType::number)) return "; it has to fit 64 bits";
  if (node.kind != Kind::string) return {};
  if (!spec.choices.empty()) return suggest_choice(spec.choices, node.text);
  if (node.text == "Auto" || node.text == "AUTO") return R"(; did you mean "auto"?)";
  if (is_python_boolean(spec, node.text)) return " in lower case, without quotes";
  const bool is_quoted_value =
      spec.takes(KeyType::boolean | KeyType::integer | KeyType::number) &&
      (node.text == "true" || node.text == "false" ||
       (!node.text.empty() && node.text.find_first_not_of("+-.0123456789eE") == std::string::npos));
  return is_quoted_value ? "; remove the quotes" : "";
}

}  // namespace

std::string expected_value(const KeySpec& spec) {
  std::vector<std::string> items;
  if (spec.takes(KeyType::boolean)) items.emplace_back("true or false");
  if (spec.takes(KeyType::integer)) items.push_back(describe_range("an integer", spec.range));
  if (spec.takes(KeyType::number)) items.push_back(describe_range("a number", spec.range));
  if (spec.takes(KeyType::infinity)) items.emplace_back("\"inf\"");
  if (spec.takes(KeyType::string)) {
    if (spec.choices.empty()) items.emplace_back("a string");
    for (const std::string_view choice : split_choices(spec.choices)) {
      items.push_back(to_text(choice));
    }
  }
  if (spec.takes(KeyType::strings)) items.emplace_back("an array of strings");
  if (spec.takes(KeyType::integers)) {
    items.push_back("an array, each " + describe_range("an integer", spec.range));
  }
  if (spec.takes(KeyType::betas)) items.emplace_back("an array of two numbers from 0 to below 1");
  if (spec.takes(KeyType::numbers)) {
    items.emplace_back("an array of such numbers, one per parameter group");
  }
  if (spec.takes(KeyType::block | KeyType::free_form)) items.emplace_back("an object");
  return join_alternatives(items);
}

std::optional<std::string> check_value(const KeySpec& spec, JsonNode& node) {
  if (is_boolean_number(spec, node)) {
    node.boolean = node.number != 0;
    node.kind = Kind::boolean;
  }
  if (is_auto(spec, node) || suits(spec, node)) return std::nullopt;
  if (is_one_of(spec.later, node)) {
    return fmt::format("got {}, not supported yet by zerorun {}; expected {}", to_short_text(node),
                       ZERORUN_VERSION, expected_value(spec));
  }
  if (is_one_of(spec.torch_classes, node)) {
    return fmt::format(
        "got {}, a class of torch, which only programs that import deepspeed can name; expected {}",
        to_short_text(node), expected_value(spec));
  }
  return fmt::format("got {}, expected {}{}", to_short_text(node), expected_value(spec),
                     advice(spec, node));
}

bool is_auto(const KeySpec& spec, const JsonNode& node) {
  const bool is_in_a_section = !spec.is_block() || !spec.parent().empty();
  return is_in_a_section && node.kind == Kind::string && node.text == "auto";
}

}  // namespace zerorun
