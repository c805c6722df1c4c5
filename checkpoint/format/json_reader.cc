#include "checkpoint/format/json_reader.h"

#include <cmath>
#include <limits>
#include <utility>

#include "checkpoint/files/file.h"
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

JsonReader::JsonReader(const nlohmann::json& object, std::string_view file, std::string_view where,
                       int64_t index)
    : object_(object), file_(file), where_(where), index_(index) {
  if (!object_.is_object()) fail("expected an object");
}

const std::string& JsonReader::text(const char* key) const {
  return member(key, &nlohmann::json::is_string, "text").get_ref<const std::string&>();
}

int64_t JsonReader::integer(const char* key, int64_t low, int64_t high) const {
  const nlohmann::json& value = member(key);
  const bool fits =
      value.is_number_unsigned()
          ? value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
          : value.is_number_integer();
  if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high) {
    fail_member(key, fmt::format("an integer from {} to {}", low, high));
  }
  return value.get<int64_t>();
}

uint64_t JsonReader::hash(const char* key) const {
  const std::optional<uint64_t> value = from_hex(text(key));
  if (!value) fail_member(key, "16 hexadecimal digits");
  return *value;
}

float JsonReader::number(const char* key) const {
  const nlohmann::json& value = member(key);
  constexpr double kMax = std::numeric_limits<float>::max();
  if (!value.is_number() || std::abs(value.get<double>()) > kMax) {
    fail_member(key, "a number that fp32 can hold");
  }
  return static_cast<float>(value.get<double>());
}

double JsonReader::real(const char* key) const {
  return member(key, &nlohmann::json::is_number, "a number").get<double>();
}

bool JsonReader::boolean(const char* key) const {
  return member(key, &nlohmann::json::is_boolean, "true or false").get<bool>();
}

DType JsonReader::dtype(const char* key) const {
  const std::string& name = text(key);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16, DType::int64, DType::uint8}) {
    if (name == name_of(dtype)) return dtype;
  }
  fail_member(key, "fp32, bf16, fp16, int64 or uint8");
}

const nlohmann::json::array_t& JsonReader::array(const char* key) const {
  return member(key, &nlohmann::json::is_array, "an array")
      .get_ref<const nlohmann::json::array_t&>();
}

std::vector<int64_t> JsonReader::shape(const char* key, size_t element_nbytes) const {
  std::vector<int64_t> result;
  for (const nlohmann::json& value : array(key)) {
    if (!value.is_number_unsigned()) fail_member(key, "an array of sizes");
    result.push_back(value.get<int64_t>());
  }
  if (checked_numel(result, element_nbytes) < 0) fail_member(key, "a size that memory can hold");
  return result;
}

void JsonReader::fail(std::string_view problem) const {
  if (index_ < 0) zerorun::fail<CheckpointError>("{}: {}: {}", file_, where_, problem);
  zerorun::fail<CheckpointError>("{}: {}[{}]: {}", file_, where_, index_, problem);
}

const nlohmann::json& JsonReader::member(const char* key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) fail(fmt::format("'{}' is missing", key));
  return *found;
}

const nlohmann::json& JsonReader::member(const char* key, Is is, std::string_view expected) const {
  const nlohmann::json& value = member(key);
  if (!(value.*is)()) fail_member(key, expected);
  return value;
}

void JsonReader::fail_member(const char* key, std::string_view expected) const {
  constexpr size_t kShown = 60;
  constexpr bool kAsciiOnly = true;  // so that a cut cannot split a character
  const nlohmann::json& value = member(key);
  std::string found = value.is_structured() ? value.type_name() : value.dump(-1, ' ', kAsciiOnly);
  if (found.size() > kShown) found = found.substr(0, kShown) + "...";
  fail(fmt::format("'{}' is {}; expected {}", key, found, expected));
}

int64_t checked_numel(const std::vector<int64_t>& shape, size_t element_nbytes) {
  int64_t nonzero = static_cast<int64_t>(element_nbytes);
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return -1;
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(nonzero, size, &nonzero)) {
      return -1;
    }
  }
  return empty ? 0 : nonzero / static_cast<int64_t>(element_nbytes);
}

}  // namespace zerorun
