#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/json_reader.h"
#include "core/check.h"

namespace zerorun {

namespace {

constexpr size_t kMaxDepth = 8;

// Builds the value that a text describes, in time linear in its length. The library's own parser
// keeps the last of two equal keys, and with a callback looks at all elements of an array again
// after each of them.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  Builder(std::string_view file, uint64_t offset) : file_(file), offset_(offset) {}

  nlohmann::json take() { return std::move(root_); }

  // The library calls these; true: go on.
  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(number_integer_t value) { return add(value); }
  bool number_unsigned(number_unsigned_t value) { return add(value); }
  bool number_float(number_float_t value, const string_t&) { return add(value); }
  bool string(string_t& value) { return add(std::move(value)); }
  bool binary(binary_t& value) { return add(std::move(value)); }
  bool start_object(size_t) { return open(nlohmann::json::object()); }
  bool start_array(size_t) { return open(nlohmann::json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    if (open_.back()->contains(name)) {
      fail<CheckpointError>("{}: '{}' stands twice in one JSON object", file_, name);
    }
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    fail<CheckpointError>("{}: not valid JSON at offset {}", file_, offset_ + position);
  }

 private:
  // The place of the next value. References to it are valid until a sibling is added, which happens
  // only when it is closed.
  nlohmann::json& place() {
    if (open_.empty()) return root_;
    nlohmann::json& parent = *open_.back();
    if (parent.is_object()) return parent[key_];
    return parent.emplace_back();
  }
  template <typename Value>
  bool add(Value&& value) {
    place() = std::forward<Value>(value);
    return true;
  }
  bool open(nlohmann::json empty) {
    if (open_.size() == kMaxDepth) {
      fail<CheckpointError>("{}: JSON nested deeper than {} levels", file_, kMaxDepth);
    }
    nlohmann::json& value = place();
    value = std::move(empty);
    open_.push_back(&value);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string_view file_;
  const uint64_t offset_;
  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;  // from the outermost to the innermost
  std::string key_;
};

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view file, uint64_t offset) {
  Builder builder(file, offset);
  try {
    nlohmann::json::sax_parse(text, &builder);
  } catch (const nlohmann::json::exception& error) {
    fail<CheckpointError>("{}: not valid JSON: {}", file, error.what());
  }
  return builder.take();
}

}  // namespace zerorun
