#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/log.h"
#include "core/printable.h"
#include "launcher/guardian.h"
#include "launcher/job.h"
#include "launcher/options.h"
#include "launcher/supervisor.h"
#include "tools/commands.h"
#include "zerorun/error.h"
#include "zerorun/version.h"

namespace {

using namespace zerorun;

// Every --help explains them.
constexpr int kFailure = 1;
constexpr int kBadInput = 2;

int launch(const LaunchOptions& options) {
  Job job = plan_job(options);
  if (options.dry_run) {
    fmt::print("{}{}{}", job.note, job.note.empty() ? "" : "\n", describe_job(job));
    return 0;
  }
  if (!job.note.empty()) Logger().info("{}", job.note);
  return run_guarded(
      [job = std::move(job)](FileDescriptor guardian, const sigset_t& original_mask) mutable {
        return Supervisor(std::move(job), std::move(guardian), original_mask).run();
      });
}

int run(const std::vector<std::string>& arguments) {
  if (const auto code = run_tool(arguments)) return *code;
  const LaunchOptions options = parse_options(arguments);
  if (options.help) {
    fmt::print("{}", help_text());
    return 0;
  }
  if (options.version) return run_tool({"version"}).value_or(0);
  return launch(options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int code = run(std::vector<std::string>(argv + 1, argv + argc));
    // The buffer's content is written only now.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      fail<IoError>("cannot write to standard output: {}", std::strerror(errno));
    }
    return code;
  } catch (const std::exception& error) {
    Logger().log(LogLevel::error, "{}", printable_lines(error.what()));
    return dynamic_cast<const ConfigError*>(&error) != nullptr ? kBadInput : kFailure;
  }
}
