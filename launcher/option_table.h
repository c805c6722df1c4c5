#pragma once

#include <string>
#include <string_view>

#include "launcher/options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace zerorun {

// Text of the options that need a check beyond their type.
struct RawOptions {
  double grace_seconds = 30;
  std::string launcher_arguments{};
  std::string rdzv_conf{};
  std::string shown_ranks{};
  std::string signals{};
  std::string log_level{};
  bool elastic = false;
};

// Defines the launcher's options, grouped by subject as its help shows them: zerorun's own, those
// of DeepSpeed's launcher and those of torchrun.
void define_options(CLI::App& app, LaunchOptions& options, RawOptions& raw);

// The advice for an option of another launcher that cannot work here; empty for other names.
std::string_view advice_on_foreign(std::string_view name);

}  // namespace zerorun
