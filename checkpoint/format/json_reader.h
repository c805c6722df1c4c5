#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/dtype.h"

namespace zerorun {

// Parses JSON that came from a file. What is not JSON, nested deeper than any of our formats, or
// has one key twice in an object is a CheckpointError naming `file`; `offset` is where `text`
// begins in the file.
nlohmann::json parse_json(std::string_view text, std::string_view file, uint64_t offset = 0);

// One JSON object of a file. A member that is missing or not what was asked for is a
// CheckpointError naming the file and the member.
class JsonReader {
 public:
  // `index` counts the objects of an array, -1 for others. All arguments must outlive the reader.
  JsonReader(const nlohmann::json& object, std::string_view file, std::string_view where,
             int64_t index = -1);

  bool has(const char* key) const { return object_.contains(key); }
  const std::string& text(const char* key) const;
  int64_t integer(const char* key, int64_t low, int64_t high) const;
  uint64_t hash(const char* key) const;
  float number(const char* key) const;  // that fp32 can hold
  double real(const char* key) const;
  bool boolean(const char* key) const;
  DType dtype(const char* key) const;
  const nlohmann::json::array_t& array(const char* key) const;
  std::vector<std::string> texts(const char* key) const;
  // Sizes whose product, in bytes of `element_nbytes`, fits in an int64.
  std::vector<int64_t> shape(const char* key, size_t element_nbytes) const;

  // Throws the error: "<file>: <where>: <problem>".
  [[noreturn]] void fail(std::string_view problem) const;

 private:
  const nlohmann::json& member(const char* key) const;
  [[noreturn]] void fail_member(const char* key, std::string_view expected) const;

  const nlohmann::json& object_;
  const std::string_view file_;
  const std::string_view where_;
  const int64_t index_;
};

// Product of the sizes, or -1 when one is negative or the product times `element_nbytes` exceeds
// an int64.
int64_t checked_numel(const std::vector<int64_t>& shape, size_t element_nbytes);

}  // namespace zerorun
