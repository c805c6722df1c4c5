#pragma once

#include <cstdint>
#include <string>

#include "zerorun/checkpoint.h"

namespace CLI {
class App;
}  // namespace CLI

namespace zerorun {

// Values of the arguments of `zerorun ckpt`; must outlive the parsing.
struct CkptArguments {
  std::string path;
  std::string other;
  std::string tag;
  Retention keep;
  bool no_norms = false;
  bool dry_run = false;
  bool json = false;
};

// Adds the subcommands ls, show, verify, diff and prune, which print what they have to say.
// (import and export are Python's.)
void define_ckpt(CLI::App& tools, CkptArguments& arguments);

}  // namespace zerorun
