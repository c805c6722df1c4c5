#pragma once

#include <optional>
#include <string>

namespace zerorun {

// An exception that a rank has left in its TORCHELASTIC_ERROR_FILE, as PyTorch's @record does.
struct ErrorRecord {
  std::string message;    // "ValueError: no such thing", one line
  std::string traceback;  // or empty
};

// Nothing where there is no such file, or it is not what @record writes.
std::optional<ErrorRecord> read_error_record(const std::string& path);

}  // namespace zerorun
