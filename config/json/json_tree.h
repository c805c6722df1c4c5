#pragma once

#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zerorun {

class ConfigProblems;

// Byte order mark, with which some editors begin a file; it is not part of the text.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// A position in a text. Lines and columns count from 1, columns in characters. Line 0 means no
// position.
struct JsonPosition {
  int line = 0;
  int column = 0;

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 of a comparison for a pointer
  auto operator<=>(const JsonPosition&) const = default;
};

// A JSON value with its position in the file.
struct JsonNode {
  enum class Kind { null, boolean, integer, number, string, array, object };

  Kind kind = Kind::null;
  JsonPosition where;
  std::string key;  // name, for a member of an object
  JsonPosition key_where;
  std::string text;  // kind string
  bool boolean = false;
  int64_t integer = 0;             // kind integer
  double number = 0;               // kinds integer and number; may be infinite or NaN
  std::vector<JsonNode> children;  // kinds array and object, in the order of the file

  static JsonNode of(int64_t integer) {
    JsonNode node;
    node.kind = Kind::integer;
    node.integer = integer;
    node.number = static_cast<double>(integer);
    return node;
  }
  bool is_number() const { return kind == Kind::integer || kind == Kind::number; }
};

inline constexpr size_t kMaxJsonBytes = size_t{16} << 20;
inline constexpr size_t kMaxJsonDepth = 64;
inline constexpr size_t kMaxJsonValues = 100'000;

// json: JSON with comments (//, #, /* */), trailing commas, and Python's Infinity and NaN. hjson:
// in addition, Hjson (https://hjson.github.io), which DeepSpeed reads: keys and strings without
// quotes, no commas between lines, no outermost braces; multi-line strings are not supported.
enum class JsonDialect { json, hjson };

// Parses a text. Duplicate keys are added to the problems. If the text cannot be parsed or exceeds
// the limits above, adds a problem and returns nullopt.
std::optional<JsonNode> read_json(std::string_view text, ConfigProblems& problems,
                                  JsonDialect dialect = JsonDialect::json);

// Returns the member `key` of an object, or nullptr.
const JsonNode* find_member(const JsonNode& object, std::string_view key);

// Returns the value as an integer if it is one; 1000000000, 1e9 and 5.0 are integers.
std::optional<int64_t> as_integer(const JsonNode& node);

// Returns canonical JSON text: equal values (1e9 and 1000000000) have equal texts.
std::string to_text(const JsonNode& node);
std::string to_text(double number);
std::string to_text(std::string_view string);
std::string to_text(JsonPosition where);  // "line:column"

// Like to_text, for messages: shortened and without control characters.
std::string to_short_text(const JsonNode& node);

// Returns the JSON pointer `pointer`/`key`, with `key` escaped (RFC 6901).
std::string append_pointer(std::string_view pointer, std::string_view key);
void extend_pointer(std::string& pointer, std::string_view key);

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
