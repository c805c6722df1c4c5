#pragma once

#include <string>
#include <string_view>

#include "launcher/options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace zerorun {

// The values of options whose text is checked after parsing.
struct RawOptions {
  double grace_seconds = 30;
  std::string launcher_arguments{};
  std::string rdzv_conf{};
  std::string shown_ranks{};
  std::string signals{};
  std::string log_level{};
  bool elastic = false;
};

// Defines the launcher's options in the groups that its help shows: zerorun's own options, those of
// DeepSpeed's launcher and those of torchrun.
void define_options(CLI::App& app, LaunchOptions& options, RawOptions& raw);

// Advice for an option of another launcher that zerorun cannot support; empty for other names.
std::string_view advice_on_foreign(std::string_view name);

}  // namespace zerorun
