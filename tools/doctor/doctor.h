#pragma once

#include <string>
#include <vector>

#include "tools/doctor/checks.h"

namespace zerorun {

struct DoctorOptions {
  std::string hostfile{};  // empty: no names are checked
  std::string folder = ".";
  int port = 29500;
  bool json = false;
};

// Checks this machine for what jobs need.
std::vector<Check> examine(const DoctorOptions& options);
// The text, or JSON, of `zerorun doctor`.
std::string doctor_text(const std::vector<Check>& checks);
std::string doctor_json(const std::vector<Check>& checks);

// Runs a rank of the job that tests the exchange between ranks, which the environment describes.
// Prints the result and returns the exit code.
int run_doctor_rank();
inline constexpr const char* kDoctorRank = "--doctor_rank";

}  // namespace zerorun
