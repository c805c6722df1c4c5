#pragma once

#include <cstdint>
#include <string>

#include "zerorun/checkpoint.h"

namespace CLI {
class App;
}  // namespace CLI

namespace zerorun {

// Values of the arguments of `zerorun ckpt`. Must exist until parsing has finished.
struct CkptArguments {
  std::string path;
  std::string other;
  std::string tag;
  Retention keep;
  bool no_norms = false;
  bool dry_run = false;
  bool json = false;
};

// Defines the subcommands ls, show, verify, diff and prune, which print their results. (import and
// export are written in Python.)
void define_ckpt(CLI::App& tools, CkptArguments& arguments);

}  // namespace zerorun
