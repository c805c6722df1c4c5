#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zerorun {

// A message between launchers of several hosts: a kind, and named values of any bytes. A name may
// have several values.
class ControlMessage {
 public:
  explicit ControlMessage(std::string kind) : kind_(std::move(kind)) {}

  const std::string& kind() const { return kind_; }
  bool is(std::string_view kind) const { return kind_ == kind; }
  ControlMessage& add(std::string name, std::string value);
  ControlMessage& add(std::string name, int64_t value);
  ControlMessage& add_all(const std::string& name, const std::vector<std::string>& values);

  // The first value of a name; empty if there is none.
  std::string text(std::string_view name) const;
  // Throws CommError unless the value is a number from `low` to `high`.
  int64_t number(std::string_view name, int64_t low, int64_t high) const;
  std::vector<std::string> all(std::string_view name) const;

  std::string encode() const;
  // Throws CommError for bytes that encode() did not produce.
  static ControlMessage decode(const std::string& bytes);

 private:
  std::string kind_;
  std::vector<std::pair<std::string, std::string>> fields_;
};

}  // namespace zerorun
