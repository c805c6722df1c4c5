#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

class ConfigProblems;

// Some editors begin a file with it; it is not a part of the text.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// A place in a text, from 1; columns count characters. Line 0: no place.
struct JsonPosition {
  int line = 0;
  int column = 0;
};

// A JSON value that remembers where it stood in the file.
struct JsonNode {
  enum class Kind { null, boolean, integer, number, string, array, object };

  Kind kind = Kind::null;
  JsonPosition where;
  std::string key;  // as a member of an object
  JsonPosition key_where;
  std::string text;  // kind string
  bool boolean = false;
  int64_t integer = 0;             // kind integer
  double number = 0;               // kinds integer and number; may be infinite or NaN
  std::vector<JsonNode> children;  // kinds array and object, in the order of the file
};

inline constexpr size_t kMaxJsonBytes = size_t{16} << 20;
inline constexpr size_t kMaxJsonDepth = 64;
inline constexpr size_t kMaxJsonValues = 100'000;

// json: as DeepSpeed users write it, with comments (//, #, /* */), trailing commas, and Python's
// Infinity and NaN. hjson: beside that, as DeepSpeed reads it with the Hjson library: keys and
// strings without quotes, no commas between lines, no outermost braces (https://hjson.github.io);
// but for strings of several lines.
enum class JsonDialect { json, hjson };

// Duplicate keys become problems. Text that cannot be read at all, or that exceeds the limits
// above, becomes a problem too and gives no tree.
std::optional<JsonNode> read_json(std::string_view text, ConfigProblems& problems,
                                  JsonDialect dialect = JsonDialect::json);

// The member `key` of an object, or null.
const JsonNode* find_member(const JsonNode& object, std::string_view key);

// The value as an integer when it is one: 1000000000, 1e9 and 5.0 are.
std::optional<int64_t> as_integer(const JsonNode& node);

// JSON text in one spelling per value, so that equal values have equal texts (1e9 and 1000000000).
std::string to_text(const JsonNode& node);
std::string to_text(double number);
std::string to_text(std::string_view string);

// to_text for messages: cut to a readable length, without control characters.
std::string to_short_text(const JsonNode& node);

// `pointer`/`key` with JSON pointer escapes (RFC 6901).
std::string append_pointer(std::string_view pointer, std::string_view key);
void extend_pointer(std::string& pointer, std::string_view key);

}  // namespace zerorun
