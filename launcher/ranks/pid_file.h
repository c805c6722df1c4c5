#pragma once

#include <string>

namespace zerorun {

// Creates the file /tmp/PID.deepspeed, which contains that number, for its lifetime. DeepSpeed's
// launcher writes it with --save_pid, for scripts that end the launcher.
class PidFile {
 public:
  // Throws IoError if the file cannot be written.
  PidFile();
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;
  ~PidFile();

 private:
  std::string path_;
  int owner_;  // pid of the creator; child processes do not remove the file
};

}  // namespace zerorun
