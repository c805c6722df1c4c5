#include "launcher/control/control_message.h"

#include <algorithm>

#include "core/check.h"
#include "core/parse_number.h"
#include "core/printable.h"
#include "os/socket.h"

namespace zerorun {

ControlMessage& ControlMessage::add(std::string name, std::string value) {
  fields_.emplace_back(std::move(name), std::move(value));
  return *this;
}

ControlMessage& ControlMessage::add(std::string name, int64_t value) {
  return add(std::move(name), std::to_string(value));
}

ControlMessage& ControlMessage::add_all(const std::string& name,
                                        const std::vector<std::string>& values) {
  for (const std::string& value : values) add(name, value);
  return *this;
}

std::string ControlMessage::text(std::string_view name) const {
  const auto field = std::find_if(fields_.begin(), fields_.end(),
                                  [name](const auto& one) { return one.first == name; });
  return field == fields_.end() ? std::string() : field->second;
}

int64_t ControlMessage::number(std::string_view name, int64_t low, int64_t high) const {
  const std::string value = text(name);
  const std::optional<int64_t> number = parse_number(value, low, high);
  if (!number) {
    fail<CommError>("a launcher's message '{}' has {}='{}', expected a number from {} to {}",
                    printable(kind_), name, printable(value), low, high);
  }
  return *number;
}

std::vector<std::string> ControlMessage::all(std::string_view name) const {
  std::vector<std::string> values;
  for (const auto& [field, value] : fields_) {
    if (field == name) values.push_back(value);
  }
  return values;
}

std::string ControlMessage::encode() const {
  std::string bytes = frame_of(kind_);
  for (const auto& [name, value] : fields_) bytes += frame_of(name) + frame_of(value);
  return bytes;
}

ControlMessage ControlMessage::decode(const std::string& bytes) {
  size_t position = 0;  // take_frame() would move the rest to the front for every field
  const auto take = [&]() -> std::string {
    constexpr size_t kLengthBytes = 4;
    if (bytes.size() - position < kLengthBytes) fail<CommError>("a launcher's message is cut off");
    size_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) {
      length |= static_cast<size_t>(static_cast<unsigned char>(bytes[position + i])) << (8 * i);
    }
    position += kLengthBytes;
    if (length > bytes.size() - position) fail<CommError>("a launcher's message is cut off");
    position += length;
    return bytes.substr(position - length, length);
  };
  ControlMessage message(take());
  while (position < bytes.size()) {
    std::string name = take();
    message.add(std::move(name), take());
  }
  return message;
}

}  // namespace zerorun
