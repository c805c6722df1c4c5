#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/dtype.h"

namespace zerorun {

// Parses JSON from a file. Throws CheckpointError that names `file` for text that is not JSON, is
// nested deeper than any of our formats, or has a key twice in one object. `offset`: where `text`
// begins in the file.
nlohmann::json parse_json(std::string_view text, std::string_view file, uint64_t offset = 0);

// Reads members of one JSON object of a file. Throws CheckpointError that names the file and the
// member if it is missing or not of the requested kind.
class JsonReader {
 public:
  // `where`: the object's name in errors. `index`: its index in an array, or -1. All arguments must
  // outlive the reader.
  JsonReader(const nlohmann::json& object, std::string_view file, std::string_view where,
             int64_t index = -1);

  bool has(const char* key) const { return object_.contains(key); }
  const std::string& text(const char* key) const;
  int64_t integer(const char* key, int64_t low, int64_t high) const;
  uint64_t hash(const char* key) const;
  float number(const char* key) const;  // in the range of fp32
  double real(const char* key) const;
  bool boolean(const char* key) const;
  DType dtype(const char* key) const;
  const nlohmann::json::array_t& array(const char* key) const;
  // A shape whose size in bytes, with `element_nbytes` per element, fits in an int64.
  std::vector<int64_t> shape(const char* key, size_t element_nbytes) const;

  JsonReader object(const char* key) const { return {member(key), file_, key}; }
  template <typename Body>
  void for_each(const char* key, const Body& body) const {
    int64_t index = 0;
    for (const nlohmann::json& entry : array(key)) body(JsonReader(entry, file_, key, index++));
  }

  // Throws the error: "<file>: <where>: <problem>".
  [[noreturn]] void fail(std::string_view problem) const;

 private:
  const nlohmann::json& member(const char* key) const;
  using Is = bool (nlohmann::json::*)() const;
  const nlohmann::json& member(const char* key, Is is, std::string_view expected) const;
  [[noreturn]] void fail_member(const char* key, std::string_view expected) const;

  const nlohmann::json& object_;
  const std::string_view file_;
  const std::string_view where_;
  const int64_t index_;
};

// The product of the sizes, or -1 if one is negative or the product times `element_nbytes` exceeds
// an int64.
int64_t checked_numel(const std::vector<int64_t>& shape, size_t element_nbytes);

}  // namespace zerorun
