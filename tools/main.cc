#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/log.h"
#include "core/printable.h"
#include "launcher/control/node_launcher.h"
#include "launcher/environment.h"
#include "launcher/options.h"
#include "tools/commands.h"
#include "tools/doctor/doctor.h"
#include "zerorun/error.h"
#include "zerorun/version.h"

namespace {

using namespace zerorun;

// Every --help explains them.
constexpr int kFailure = 1;
constexpr int kBadInput = 2;

int run(const std::vector<std::string>& arguments) {
  if (const auto code = run_tool(arguments)) return *code;
  if (!arguments.empty() && arguments.front() == "--node_launcher") {
    return run_node_launcher(arguments);
  }
  if (!arguments.empty() && arguments.front() == kDoctorRank) return run_doctor_rank();
  LaunchOptions options = parse_options(arguments, inherited_environment());
  if (options.help) {
    std::fputs(help_text(list_commands()).c_str(), stdout);
    return 0;
  }
  if (options.version) return run_tool({"version"}).value_or(0);
  options.program.commands = command_names();
  return launch(arguments, options);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // write() reports an error if a file may not grow
  try {
    const int code = run(std::vector<std::string>(argv + 1, argv + argc));
    // Buffered output is written only now.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      fail<IoError>("cannot write to standard output: {}", std::strerror(errno));
    }
    return code;
  } catch (const std::exception& error) {
    Logger().log(LogLevel::error, "{}", printable_lines(error.what()));
    return dynamic_cast<const ConfigError*>(&error) != nullptr ? kBadInput : kFailure;
  }
}
