#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "config/json/json_tree.h"
#include "core/printable.h"

namespace zerorun {

namespace {

using Kind = JsonNode::Kind;

constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::string_view kDelimiters{" \t\r\n,:[]{}\"/#\0", 14};  // these end a word
constexpr std::string_view kHjsonPunctuation = "{}[],:";            // these begin no bare value
constexpr size_t kMaxWord = 400;                                    // bytes of a number
constexpr std::string_view kHjsonKeyEnd = " \t\r\n{}[],:\"'";       // these end a bare key

// Length of the string literal that `text` begins with, quotes included.
size_t string_length(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return text.size();
}

// Length of the comment that `text` begins with: 0 when there is none, npos when it never ends.
size_t comment_length(std::string_view text) {
  if (text.starts_with("/*")) {
    const size_t end = text.find("*/", 2);
    return end == std::string_view::npos ? end : end + 2;
  }
  if (text.starts_with("//") || text.starts_with("#")) {
    return std::min(text.find('\n'), text.size());
  }
  return 0;
}

// A string or a word up to the next delimiter; at a delimiter, that one character.
std::string_view token_of(std::string_view text) {
  if (text.starts_with('"')) return text.substr(0, string_length(text));
  if (text.starts_with("/*")) return text.substr(0, 2);
  return text.substr(0,
                     std::max<size_t>(1, std::min(text.find_first_of(kDelimiters), text.size())));
}

bool is_utf8(std::string_view text) {
  for (; !text.empty(); text.remove_prefix(utf8_size(text))) {
    if (utf8_size(text) == 0) return false;
  }
  return true;
}

// Returns why the library rejects a string literal.
std::string_view string_problem(std::string_view literal) {
  for (std::string_view rest = literal; !rest.empty(); rest.remove_prefix(utf8_size(rest))) {
    if (static_cast<unsigned char>(rest.front()) < 0x20) {
      return "control character, which JSON writes as an escape such as \\n";
    }
    if (utf8_size(rest) == 0) return "ill-formed UTF-8 byte";
  }
  if (literal.size() < 2 || !literal.ends_with('"')) return "missing closing quote";
  return "an escape that JSON does not have";
}

std::string_view without_spaces_at_end(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpaces);
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

// A recursive-descent parser, which handles positions, comments and error messages itself and
// leaves the conversion of single strings and numbers to the library. Every reading function that
// returns false has added a problem.
class JsonReader {
 public:
  JsonReader(std::string_view text, ConfigProblems& problems, JsonDialect dialect)
      : text_(text), problems_(problems), is_hjson_(dialect == JsonDialect::hjson) {
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
  }

  std::optional<JsonNode> read() {
    JsonNode root;
    if (!skip_space()) return std::nullopt;
    const bool has_braces = text_.starts_with('{') || text_.starts_with('[');
    const bool is_read = is_hjson_ && !has_braces ? read_bare_object(root) : read_value(root);
    if (!is_read || !skip_space()) return std::nullopt;
    if (text_.empty()) return root;
    fail_at_token("expected nothing after the first value");
    return std::nullopt;
  }

 private:
  bool read_value(JsonNode& node) {
    node.where = where_;
    if (++values_ > kMaxJsonValues) {
      problems_.add(pointer_, where_, "more than {} values: not a configuration", kMaxJsonValues);
      return false;
    }
    if (text_.starts_with('{')) {
      node.kind = Kind::object;
      std::unordered_map<std::string, JsonPosition> seen;
      return read_items('}', [&] { return read_member(node, seen); });
    }
    if (text_.starts_with('[')) {
      node.kind = Kind::array;
      return read_items(']', [&] { return read_element(node); });
    }
    if (text_.starts_with('"')) {
      node.kind = Kind::string;
      return read_string(node.text);
    }
    return is_hjson_ ? read_bare_value(node) : read_word(node);
  }

  // Reads Hjson's outermost object without braces.
  bool read_bare_object(JsonNode& root) {
    root.kind = Kind::object;
    root.where = where_;
    std::unordered_map<std::string, JsonPosition> seen;
    do {
      if (!read_member(root, seen)) return false;
      pointer_.clear();
      if (!skip_space()) return false;
      if (text_.starts_with(',')) advance(1);
      if (!skip_space()) return false;
    } while (!text_.empty());
    return true;
  }

  // Reads an unquoted value of Hjson: a JSON word up to a separator, a comment or the end of the
  // line; otherwise a string, which is the rest of the line.
  bool read_bare_value(JsonNode& node) {
    if (text_.starts_with("\'\'\'")) return fail_at_token("a string of several lines; use \"...\"");
    if (text_.starts_with('\'')) {
      node.kind = Kind::string;
      return read_single_quoted(node.text);
    }
    if (text_.empty() || kHjsonPunctuation.find(text_.front()) != std::string_view::npos) {
      return fail_at_token("expected a value");
    }
    const std::string_view line = text_.substr(0, text_.find('\n'));
    for (size_t end = line.find_first_of(",}]#/");; end = line.find_first_of(",}]#/", end + 1)) {
      const std::string_view word = without_spaces_at_end(line.substr(0, end));
      const auto value = nlohmann::json::parse(word, nullptr, /*allow_exceptions=*/false);
      if (!value.is_discarded()) {
        node.kind = Kind::null;
        set_scalar(value, node);
        advance(word.size());
        return true;
      }
      if (end >= std::min(line.size(), kMaxWord)) break;
    }
    const std::string_view rest = without_spaces_at_end(line);
    if (!is_utf8(rest)) return fail_at_token("ill-formed UTF-8 byte");
    node.kind = Kind::string;
    node.text = rest;
    advance(rest.size());
    return true;
  }

  bool read_single_quoted(std::string& out) {
    const size_t end = text_.find_first_of("'\\\n", 1);
    if (end == std::string_view::npos || text_[end] != '\'') {
      return fail_at_token("expected a closing ' on this line, and no escape; use \"...\"");
    }
    out = text_.substr(1, end - 1);
    if (!is_utf8(out)) return fail_at_token("ill-formed UTF-8 byte");
    advance(end + 1);
    return true;
  }

  bool read_key(std::string& out) {
    if (text_.starts_with('"')) return read_string(out);
    if (!is_hjson_) return fail_at_token("expected a key in double quotes");
    if (text_.starts_with('\'')) return read_single_quoted(out);
    const size_t end = std::min(text_.find_first_of(kHjsonKeyEnd), text_.size());
    if (end == 0) return fail_at_token("expected a key");
    out = text_.substr(0, end);
    if (!is_utf8(out)) return fail_at_token("ill-formed UTF-8 byte");
    advance(end);
    return true;
  }

  // Reads from the opening bracket to the closing one; a comma may follow the last item. In Hjson
  // no comma is needed.
  template <typename ReadItem>
  bool read_items(char closing, const ReadItem& read_item) {
    if (depth_ == kMaxJsonDepth) {
      problems_.add(pointer_, where_, "nested deeper than {} levels", kMaxJsonDepth);
      return false;
    }
    ++depth_;
    advance(1);
    const size_t pointer_length = pointer_.size();
    while (true) {
      if (!skip_space()) return false;
      if (text_.starts_with(closing)) break;
      if (!read_item()) return false;
      pointer_.resize(pointer_length);
      if (!skip_space()) return false;
      if (text_.starts_with(closing)) break;
      if (text_.starts_with(',')) {
        advance(1);
      } else if (!is_hjson_ || text_.empty()) {
        return fail_at_token("expected ',' or '{}'", closing);
      }
    }
    --depth_;
    advance(1);
    return true;
  }

  bool read_element(JsonNode& array) {
    extend_pointer(pointer_, std::to_string(array.children.size()));
    return read_value(array.children.emplace_back());
  }

  bool read_member(JsonNode& object, std::unordered_map<std::string, JsonPosition>& seen) {
    JsonNode& member = object.children.emplace_back();
    member.key_where = where_;
    if (!read_key(member.key)) return false;
    extend_pointer(pointer_, member.key);
    if (const auto [first, is_new] = seen.emplace(member.key, member.key_where); !is_new) {
      problems_.add(pointer_, member.key_where, "given twice, first at {}; keep one of them",
                    to_text(first->second));
    }
    if (!skip_space()) return false;
    if (!text_.starts_with(':')) return fail_at_token("expected ':'");
    advance(1);
    return skip_space() && read_value(member);
  }

  bool read_string(std::string& out) {
    const std::string_view token = token_of(text_);
    const auto value = nlohmann::json::parse(token, nullptr, /*allow_exceptions=*/false);
    if (!value.is_string()) return fail_at_token("invalid string: {}", string_problem(token));
    out = value.get<std::string>();
    advance(token.size());
    return true;
  }

  // Reads a number, or a word for a value in JSON or Python.
  bool read_word(JsonNode& node) {
    const std::string_view token = token_of(text_);
    if (token == "NaN" || token == "Infinity" || token == "-Infinity") {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      node.kind = Kind::number;
      node.number = token == "NaN"        ? std::numeric_limits<double>::quiet_NaN()
                    : token == "Infinity" ? kInfinity
                                          : -kInfinity;
    } else {
      const auto value = nlohmann::json::parse(token, nullptr, /*allow_exceptions=*/false);
      if (value.is_discarded()) return fail_at_word(token);
      set_scalar(value, node);
    }
    advance(token.size());
    return true;
  }

  static void set_scalar(const nlohmann::json& value, JsonNode& node) {
    if (value.is_boolean()) {
      node.kind = Kind::boolean;
      node.boolean = value.get<bool>();
    } else if (value.is_number()) {
      node.number = value.get<double>();
      const bool fits =
          !value.is_number_unsigned() || std::in_range<int64_t>(value.get<uint64_t>());
      node.kind = value.is_number_integer() && fits ? Kind::integer : Kind::number;
      if (node.kind == Kind::integer) node.integer = value.get<int64_t>();
    }
  }

  bool fail_at_word(std::string_view word) {
    const char first = word.empty() ? ',' : word.front();
    if (kDelimiters.find(first) != std::string_view::npos) return fail_at_token("expected a value");
    const bool is_number = first == '-' || std::isdigit(static_cast<unsigned char>(first)) != 0;
    double unused = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), unused);
    if (is_number && error == std::errc::result_out_of_range && end == word.data() + word.size()) {
      problems_.add(pointer_, where_, "got {}, expected a number below 1.8e308", shown(word));
      return false;
    }
    return fail_at_token("invalid {}; expected a value", is_number ? "number" : "literal");
  }

  // Skips white space and comments.
  bool skip_space() {
    while (true) {
      advance(std::min(text_.find_first_not_of(kSpaces), text_.size()));
      const size_t length = comment_length(text_);
      if (length == 0) return true;
      if (length == std::string_view::npos) return fail_at_token("a comment that never ends");
      advance(length);
    }
  }

  template <typename... Args>
  bool fail_at_token(fmt::format_string<Args...> format, Args&&... args) {
    problems_.add(pointer_, where_, "broken JSON: got {}; {}",
                  text_.empty() ? "the end of the text" : shown(token_of(text_)),
                  fmt::format(format, std::forward<Args>(args)...));
    return false;
  }

  // The first line of a token.
  static std::string shown(std::string_view token) {
    constexpr size_t kMaxShownBytes = 60;
    return printable(token.substr(0, token.find('\n')), kMaxShownBytes);
  }

  void advance(size_t bytes) {
    for (const char c : text_.substr(0, bytes)) {
      if (c == '\n') {
        ++where_.line;
        where_.column = 1;
      } else if ((static_cast<unsigned char>(c) & 0xc0U) != 0x80U) {  // not inside a character
        ++where_.column;
      }
    }
    text_.remove_prefix(bytes);
  }

  std::string_view text_;  // remaining text
  ConfigProblems& problems_;
  bool is_hjson_;
  JsonPosition where_{1, 1};
  std::string pointer_;  // of the value being read
  size_t depth_ = 0;
  size_t values_ = 0;
};

}  // namespace

std::optional<JsonNode> read_json(std::string_view text, ConfigProblems& problems,
                                  JsonDialect dialect) {
  if (text.size() > kMaxJsonBytes) {
    problems.add("", {}, "got {} bytes, expected a configuration of at most {}", text.size(),
                 kMaxJsonBytes);
    return std::nullopt;
  }
  return JsonReader(text, problems, dialect).read();
}

}  // namespace zerorun
