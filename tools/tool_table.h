#pragma once

#include <string>

#include "tools/ckpt/ckpt_commands.h"
#include "tools/plan/plan.h"
#include "zerorun/config.h"

namespace zerorun {

// Values of the tools' arguments; must outlive the parsing.
struct ToolArguments {
  std::string path{};
  RunFacts facts{.world_size = 1};
  int elastic_ranks = 0;
  PlanOptions plan{};
  double bench_gib = 1;
  CkptArguments ckpt{};
  std::string shell{};
};

// Defines the tools, each in the group of the task that it is for, as the help shows them.
void define_tools(CLI::App& tools, ToolArguments& arguments);

}  // namespace zerorun
