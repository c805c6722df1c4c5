#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/program.h"
#include "launcher/resources.h"

namespace zerorun {

// The command line `zerorun [options] PROGRAM [arguments]`.
struct LaunchOptions {
  RankRequest request;
  ProgramRequest program;
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 0;  // 0 = a free one
  std::string log_dir;
  std::chrono::milliseconds grace_period{30000};
  bool deepspeed_compat = false;
  bool no_bind = false;
  bool dry_run = false;
  bool help = false;
  bool version = false;
};

// `arguments` without the launcher's own name. Options come first; from PROGRAM on nothing is
// looked at. Throws ConfigError: for an unknown option it names the nearest one, for an option of
// other launchers that is not there yet it says so.
LaunchOptions parse_options(const std::vector<std::string>& arguments);

std::string help_text();

}  // namespace zerorun
