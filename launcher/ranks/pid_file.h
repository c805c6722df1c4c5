#pragma once

#include <string>

namespace zerorun {

// The file /tmp/PID.deepspeed, with that number in it, while this exists: what DeepSpeed's launcher
// writes with --save_pid for scripts that end it.
class PidFile {
 public:
  // Throws IoError when it cannot be written.
  PidFile();
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;
  ~PidFile();

 private:
  std::string path_;
  int owner_;  // a child of the launcher leaves the file alone
};

}  // namespace zerorun
