#include "launcher/ranks/error_record.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "os/text_file.h"

namespace zerorun {

namespace {

constexpr uint64_t kMaxErrorFile = uint64_t{1} << 20;

std::string text_at(const nlohmann::json& object, const char* name) {
  if (!object.is_object()) return {};
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

std::optional<ErrorRecord> read_error_record(const std::string& path) {
  std::string text;
  if (path.empty() || try_read_text(path, kMaxErrorFile, text) != 0) return std::nullopt;
  const nlohmann::json root = nlohmann::json::parse(text, nullptr, false);
  if (!root.is_object() || !root.contains("message")) return std::nullopt;
  // {"message": {"message": ..., "extraInfo": {"py_callstack": ...}}}, or the text itself.
  const nlohmann::json& message = root["message"];
  ErrorRecord record;
  record.message = message.is_string() ? message.get<std::string>() : text_at(message, "message");
  if (message.is_object() && message.contains("extraInfo")) {
    record.traceback = text_at(message["extraInfo"], "py_callstack");
  }
  if (record.message.empty()) return std::nullopt;
  record.message = record.message.substr(0, record.message.find('\n'));
  return record;
}

}  // namespace zerorun
