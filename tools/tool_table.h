#pragma once

#include <string>

#include "tools/ckpt/ckpt_report.h"
#include "tools/doctor/doctor.h"
#include "tools/plan/plan.h"
#include "zerorun/config.h"

namespace zerorun {

// Values of the arguments of tools. Must exist until parsing has finished.
struct ToolArguments {
  std::string path{};
  RunFacts facts{.world_size = 1};
  int elastic_ranks = 0;
  PlanOptions plan{};
  double bench_gib = 1;
  DoctorOptions doctor{};
  CkptArguments ckpt{};
  std::string shell{};
};

// Defines the tools in the groups (tasks) that the help shows.
void define_tools(CLI::App& tools, ToolArguments& arguments);

}  // namespace zerorun
