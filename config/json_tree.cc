#include "config/json_tree.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "config/json_text.h"
#include "config/problems.h"

namespace zerorun {

namespace {

using Kind = JsonNode::Kind;

constexpr size_t kMaxShownBytes = 60;
constexpr size_t kMaxShownItems = 8;

// What the library expected, in its words and in ours.
constexpr auto kExpectations = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"'}'", "',' or '}'"},  // it asks for the end only where a comma would do as well
    {"']'", "',' or ']'"},
    {"':'", "':'"},
    {"string literal", "a key in double quotes"},
    {"end of input", "nothing after the first value"},
    {"'[', '{', or a literal", "a value"},
});

// The helpful part of the library's message, without the bytes of the file in it: "[...] parse
// error at ...: syntax error while parsing X - REASON; last read: '...'; expected Y".
std::string describe_syntax_error(std::string_view message) {
  constexpr std::string_view kExpected = "; expected ";
  std::string expected = "expected a value";
  const size_t tail = message.rfind(kExpected);
  for (const auto& [theirs, ours] : kExpectations) {
    if (tail != std::string_view::npos && message.substr(tail + kExpected.size()) == theirs) {
      expected = fmt::format("expected {}", ours);
    }
  }
  const size_t reason = message.find(" - ");
  const size_t end = message.find("; last read: ");
  if (reason == std::string_view::npos || end == std::string_view::npos || end < reason) {
    return expected;
  }
  return fmt::format("{}; {}", message.substr(reason + 3, end - reason - 3), expected);
}

JsonPosition place_of(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t line_start = before.rfind('\n') + 1;  // 0 without a line break
  return {static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1,
          static_cast<int>(offset - line_start) + 1};
}

// Builds the tree from the library's events. Every event belongs to the cursor's next token.
class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(std::string_view strict, std::string_view original, ConfigProblems& problems)
      : cursor_(strict, original), problems_(problems) {}

  JsonNode take_root() { return std::move(root_); }

  bool null() override { return leaf(start(Kind::null)); }
  bool boolean(bool value) override {
    JsonNode node = start(Kind::boolean);
    node.boolean = value;
    return leaf(std::move(node));
  }
  bool number_integer(number_integer_t value) override {
    JsonNode node = start(Kind::integer);
    node.integer = value;
    node.number = static_cast<double>(value);
    return leaf(std::move(node));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (std::in_range<int64_t>(value)) return number_integer(static_cast<int64_t>(value));
    return number_float(static_cast<double>(value), {});
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    JsonNode node = start(Kind::number);
    node.number = value;
    return leaf(std::move(node));
  }
  bool string(string_t& value) override {
    JsonNode node = start(Kind::string);
    if (!token_.text.starts_with('"')) {  // a word that to_strict_json has quoted
      node.kind = Kind::number;
      node.number = token_.text == "NaN" ? std::numeric_limits<double>::quiet_NaN()
                                         : std::numeric_limits<double>::infinity();
      if (token_.text.starts_with('-')) node.number = -node.number;
    } else {
      node.text = std::move(value);
    }
    return leaf(std::move(node));
  }
  bool binary(binary_t& /*value*/) override { return false; }  // not in JSON text

  bool start_object(size_t /*elements*/) override { return open(start(Kind::object)); }
  bool end_object() override { return close(); }
  bool start_array(size_t /*elements*/) override { return open(start(Kind::array)); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    token_ = cursor_.next();
    if (!token_.text.starts_with('"')) {
      problems_.add(pointer(), token_.where, "broken JSON: got {}, expected a key in quotes",
                    token_.text);
      return false;
    }
    const auto [known, is_new] = keys_.back().emplace(value, token_.where);
    if (!is_new) {
      problems_.add(append_pointer(pointer(), value), token_.where,
                    "given twice, first at {}:{}; keep one of them", known->second.line,
                    known->second.column);
    }
    key_ = std::move(value);
    key_where_ = token_.where;
    return true;
  }

  bool parse_error(size_t /*offset*/, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    token_ = cursor_.next();
    const std::string got = token_.text.empty() ? "the end of the text" : shown(token_.text);
    const std::string at = key_.empty() ? pointer() : append_pointer(pointer(), key_);
    if (error.id == kNumberOverflow) {
      problems_.add(at, token_.where, "got {}, expected a number below 1.8e308", got);
    } else if (token_.text == "/*") {
      problems_.add(at, token_.where, "broken JSON: got {}, a comment that never ends", got);
    } else {
      problems_.add(at, token_.where, "broken JSON: got {}; {}", got,
                    describe_syntax_error(error.what()));
    }
    return false;
  }

 private:
  // The first line of a token that may be any bytes.
  static std::string shown(std::string_view text) {
    std::string ascii;
    for (const char c : text.substr(0, std::min(text.find('\n'), kMaxShownBytes))) {
      ascii += static_cast<unsigned char>(c) < 0x80 ? std::string(1, c)
                                                    : fmt::format("\\x{:02x}", c & 0xff);
    }
    return printable(ascii, kMaxShownBytes);
  }

  std::string pointer() const {
    std::string out;
    for (size_t i = 1; i < open_.size(); ++i) {
      const JsonNode& parent = open_[i - 1];
      out = append_pointer(
          out, parent.kind == Kind::array ? std::to_string(parent.children.size()) : open_[i].key);
    }
    return out;
  }

  JsonNode start(Kind kind) {
    token_ = cursor_.next();
    JsonNode node;
    node.kind = kind;
    node.where = token_.where;
    node.key = std::exchange(key_, {});
    node.key_where = std::exchange(key_where_, {});
    return node;
  }

  bool open(JsonNode node) {
    if (open_.size() == kMaxJsonDepth) {
      problems_.add(pointer(), node.where, "nested deeper than {} levels", kMaxJsonDepth);
      return false;
    }
    open_.push_back(std::move(node));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    token_ = cursor_.next();
    JsonNode node = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return leaf(std::move(node));
  }

  bool leaf(JsonNode node) {
    if (++values_ > kMaxJsonValues) {
      problems_.add(pointer(), node.where, "more than {} values: not a configuration",
                    kMaxJsonValues);
      return false;
    }
    if (open_.empty()) {
      root_ = std::move(node);
    } else {
      open_.back().children.push_back(std::move(node));
    }
    return true;
  }

  JsonCursor cursor_;
  ConfigProblems& problems_;
  JsonCursor::Token token_;
  JsonNode root_;
  std::vector<JsonNode> open_;                                       // containers being read
  std::vector<std::unordered_map<std::string, JsonPosition>> keys_;  // of each of them
  std::string key_;                                                  // of the value to come
  JsonPosition key_where_;
  size_t values_ = 0;
};

}  // namespace

std::optional<JsonNode> read_json(std::string_view text, ConfigProblems& problems) {
  if (text.size() > kMaxJsonBytes) {
    problems.add("", {}, "got {} bytes, expected a configuration of at most {}", text.size(),
                 kMaxJsonBytes);
    return std::nullopt;
  }
  const size_t nul = text.find('\0');  // the library would take it for the end
  if (nul != std::string_view::npos) {
    problems.add("", place_of(text, nul), "got a NUL byte, expected JSON in UTF-8");
    return std::nullopt;
  }
  const std::string strict = to_strict_json(text);
  TreeBuilder builder(strict, text, problems);
  if (!nlohmann::json::sax_parse(strict, &builder)) return std::nullopt;
  return builder.take_root();
}

const JsonNode* find_member(const JsonNode& object, std::string_view key) {
  for (const JsonNode& child : object.children) {
    if (child.key == key) return &child;
  }
  return nullptr;
}

std::optional<int64_t> as_integer(const JsonNode& node) {
  if (node.kind == Kind::integer) return node.integer;
  constexpr double kLimit = 0x1p63;
  if (node.kind != Kind::number || std::trunc(node.number) != node.number ||
      std::abs(node.number) >= kLimit) {
    return std::nullopt;
  }
  return static_cast<int64_t>(node.number);
}

std::string to_text(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
  return fmt::format("{}", number);
}

std::string to_text(std::string_view string) {
  return nlohmann::json(string).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string to_text(const JsonNode& node) {
  switch (node.kind) {
    case Kind::null:
      return "null";
    case Kind::boolean:
      return node.boolean ? "true" : "false";
    case Kind::integer:
      return std::to_string(node.integer);
    case Kind::number: {
      const std::optional<int64_t> integer = as_integer(node);
      return integer ? std::to_string(*integer) : to_text(node.number);
    }
    case Kind::string:
      return to_text(std::string_view(node.text));
    case Kind::array:
    case Kind::object:
      break;
  }
  const bool is_object = node.kind == Kind::object;
  std::string out(1, is_object ? '{' : '[');
  for (const JsonNode& child : node.children) {
    if (out.size() > 1) out += ',';
    if (is_object) out += to_text(std::string_view(child.key)) + ':';
    out += to_text(child);
  }
  return out + (is_object ? '}' : ']');
}

std::string to_short_text(const JsonNode& node) {
  switch (node.kind) {
    case Kind::array:
      return node.children.size() <= kMaxShownItems
                 ? printable(to_text(node), kMaxShownBytes)
                 : fmt::format("an array of {}", node.children.size());
    case Kind::object:
      return node.children.empty() ? "{}" : "an object";
    case Kind::string:
      return to_text(std::string_view(node.text).substr(0, kMaxShownBytes)) +
             (node.text.size() > kMaxShownBytes ? "..." : "");
    default:
      return to_text(node);
  }
}

std::string append_pointer(std::string_view pointer, std::string_view key) {
  std::string out(pointer);
  out += '/';
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace zerorun
