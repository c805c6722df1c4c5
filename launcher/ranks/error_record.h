#pragma once

#include <optional>
#include <string>

namespace zerorun {

// An exception that a rank has left in its TORCHELASTIC_ERROR_FILE, as PyTorch's @record does.
struct ErrorRecord {
  std::string message;    // "ValueError: no such thing", one line
  std::string traceback;  // or empty
};

// nullopt if the file does not exist or was not written by @record.
std::optional<ErrorRecord> read_error_record(const std::string& path);

}  // namespace zerorun
